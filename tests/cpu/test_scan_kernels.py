"""Scans and latent attention as C++: forms that no published small model has, states left on the
way, and what a step refuses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import torch
from model_builds import this_isa

from kernelgen.codegen.cpp.program import CppProgram, cpp_program
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.weights import bound_weights, demanded_layouts
from kernelgen.compile.cpp import CppSource, compile_cpp
from kernelgen.compile.store import Store
from kernelgen.core.dtypes import BFLOAT16, FLOAT32, DType
from kernelgen.hw import parse_target
from kernelgen.ir.graph import Graph
from kernelgen.lower import lower_decoder
from kernelgen.planner.planner import Planner
from kernelgen.spec.model import (
    Activation,
    DeltaSpec,
    LatentSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
)
from kernelgen.verify.evaluate import Chunk, Evaluator, feed
from kernelgen.verify.layouts import laid_out
from kernelgen.verify.library import KernelLibrary

VOCAB, HIDDEN, LENGTH, ROWS = 40, 24, 128, 3
BOUND = 1e-4  # of the largest logit, at least of 1: float32 against float64
FEED = MlpSpec(20, Activation.SILU)
BOUNDED = DeltaSpec(heads=3, head_dim=10, taps=3, decay_rank=6, gate_rank=None, bound=-4.0)
LATENT = LatentSpec(3, 14, 6, 4, 8, 1e-6, query_rank=9, gate=True)
SPEC = ModelSpec(
    architecture="scans",
    layers=(LayerSpec(BOUNDED, FEED, 1e-5), LayerSpec(LATENT, FEED, 1e-5)),
    hidden=HIDDEN,
    vocab=VOCAB,
    max_positions=LENGTH,
    norm_eps=1e-5,
    tied_head=False,
    stored=FLOAT32,
)


@dataclass
class Model:
    """A decoder of two such layers, by references and as a library."""

    dtype: DType

    @cached_property
    def graph(self) -> Graph:
        return lower_decoder(SPEC, self.dtype)

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        made = torch.Generator().manual_seed(3)
        found = {}
        for weight in bound_weights(self.graph, {}):
            noise = torch.randn(weight.matrix, generator=made)
            if len(weight.matrix) == 1:
                near = {"rate": -1.5, "decay_bias": -1.0}
                base = next((v for end, v in near.items() if weight.name.endswith(end)), 1.0)
                found[weight.name] = base + 0.2 * noise
            else:
                found[weight.name] = noise / weight.matrix[-1] ** 0.5
        return found

    def evaluator(self) -> Evaluator:
        return Evaluator(self.graph, self.weights, dtype=torch.float64, capacity=LENGTH)

    @cached_property
    def program(self) -> CppProgram:
        device = parse_target("cpu")
        planner = Planner(self.graph, device, device.target, catalogue(device))
        plans = (planner.plan("decode", 4), planner.plan("mixed", 64))
        return cpp_program(plans, VOCAB, LENGTH)

    @cached_property
    def library(self) -> KernelLibrary:
        program, store = self.program, Store()
        with store.session():
            sources = [CppSource(path, text) for path, text in sorted(program.units.items())]
            (made,) = compile_cpp(
                sources, isas=[this_isa()], store=store, headers=program.headers, jobs=2
            )
            library = KernelLibrary(made.path, this_isa())
        layouts = demanded_layouts(program.plans)
        for weight in program.weights:
            kind = getattr(torch, weight.dtype)
            local = weight.name.removeprefix("layers.0.").removeprefix("layers.1.")
            plain = self.weights[weight.name].to(kind)
            library.bind(weight.name, aligned(laid_out(plain, layouts.get(local, "rows"))))
        return library


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    place = torch.zeros(tensor.numel() + 64, dtype=tensor.dtype)
    start = -place.data_ptr() % 64 // tensor.element_size()
    found = place[start : start + tensor.numel()].view(tensor.shape)
    found.copy_(tensor)
    return found


class Session:
    """Steps on fresh pools: pages 1 … of tokens a row has, states as they are asked."""

    def __init__(self, model: Model) -> None:
        self.model, program = model, model.program
        self.states = aligned(torch.full((9, program.cache.state_bytes), 255, dtype=torch.uint8))
        self.cache = aligned(torch.full((40, program.cache.page_bytes), 255, dtype=torch.uint8))
        self.logits = torch.zeros(64, VOCAB)
        self.sampled = torch.zeros(64, dtype=torch.int32)
        self.last = torch.zeros(4, dtype=torch.int32)
        size = max(plan.workspace_bytes for plan in program.plans)
        self.workspace = aligned(torch.zeros(size, dtype=torch.uint8))
        for name in ("states", "cache", "logits", "sampled", "workspace"):
            model.library.bind(name, getattr(self, name))
        model.library.bind("last_sampled", self.last)
        model.library.set_threads(2)

    def step(self, *rows: dict, decode: bool = False) -> list[torch.Tensor]:
        """Logits of every token of each row: `ids`, `start`, `table`, `state` = (from, to), and
        `mark` = (page, tokens); `slot` −1 is padding."""
        args = self.model.program.args
        words = np.zeros(args.words, np.int32)
        at = {f.name: f.offset for f in args.fields}
        ids = [i for row in rows for i in row["ids"]]
        words[at["counts"] : at["counts"] + 3] = len(ids), len(rows), len(ids)
        words[at["token_ids"] : at["token_ids"] + len(ids)] = ids
        begun = 0
        for r, row in enumerate(rows):
            count, slot = len(row["ids"]), row.get("slot", r)
            words[at["row_slot"] + r] = slot
            words[at["row_seq_len"] + r] = 0 if slot < 0 else row["start"] + count
            begun += count
            words[at["row_query_start"] + r + 1] = begun
            mark = row.get("mark", (0, 0))
            names = ("state_from", "state_to", "state_mark", "state_mark_at")
            for name, value in zip(names, (*row.get("state", (0, 0)), *mark), strict=True):
                words[at[name] + r] = value
            table = at["block_table.full_0"] + r * args.max_pages
            words[table : table + len(row.get("table", ()))] = row.get("table", ())
        words[at["logit_token"] : at["logit_token"] + len(ids)] = range(len(ids))
        words[at["logit_row"] : at["logit_row"] + len(ids)] = -1
        self.model.library.step(0 if decode else 1, torch.from_numpy(words))
        return list(self.logits[: len(ids)].clone().split([len(row["ids"]) for row in rows]))


@pytest.fixture(scope="module", params=[FLOAT32, BFLOAT16], ids=str)
def model(request: pytest.FixtureRequest) -> Model:
    return Model(request.param)


def ids_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def expected(model: Model, ids: list[int]) -> torch.Tensor:
    return model.evaluator().step(feed([Chunk(0, 0, ids)], every_logit=True))["logits"]


def test_the_library_computes_what_the_references_mean(model: Model) -> None:
    if model.dtype is BFLOAT16:
        pytest.skip("rounding moves logits by more than any bound that would see a fault")
    ids = ids_of(40)
    (found,) = Session(model).step({"ids": ids, "start": 0, "table": [1, 2, 3], "state": (0, 1)})
    wanted = expected(model, ids)
    assert float((found - wanted).abs().max()) <= BOUND * max(1.0, float(wanted.abs().max()))


@pytest.mark.row("R-127")
@pytest.mark.row("R-136")
@pytest.mark.parametrize("cut", [16, 32])
def test_a_state_left_on_the_way_gives_the_bits_of_the_whole(model: Model, cut: int) -> None:
    """40 tokens at once keep the state at a boundary; another request goes on from there."""
    ids, session = ids_of(40), Session(model)
    whole = {"ids": ids, "start": 0, "table": [1, 2, 3], "state": (0, 1), "mark": (2, cut)}
    (cold,) = session.step(whole)
    rest = {"ids": ids[cut:], "start": cut, "table": [1, 2, 3], "state": (2, 3)}
    (resumed,) = session.step(rest)
    assert torch.equal(resumed, cold[cut:])
    again = session.states.clone()
    assert torch.equal(again[1], again[3])
    one = [session.step(dict(rest, ids=[i], start=cut + n, state=(2 if n == 0 else 4, 4)),
                        decode=True)[0] for n, i in enumerate(ids[cut:])]  # fmt: skip
    assert torch.equal(torch.cat(one), cold[cut:])
    assert torch.equal(session.states[4], again[1]) and torch.equal(session.states[2], again[2])


def test_rows_of_a_batch_are_alone(model: Model) -> None:
    """A prompt, a decoding request, padding, and a first token in a slot that held another's."""
    ids, other = ids_of(20), ids_of(9, 1)
    session = Session(model)
    (alone,) = session.step({"ids": ids, "start": 0, "table": [1, 2], "state": (0, 1)})
    (before,) = session.step({"ids": other, "start": 0, "table": [3], "state": (0, 2)})
    session = Session(model)
    session.step({"ids": ids[:19], "start": 0, "table": [1, 2], "state": (0, 1)})
    rows = session.step(
        {"ids": ids[19:], "start": 19, "table": [1, 2], "state": (1, 1)},
        {"ids": [0, 0], "start": 0, "slot": -1, "state": (7, 7)},
        {"ids": other, "start": 0, "table": [3], "state": (0, 2)},
    )
    assert torch.equal(rows[0], alone[19:]) and torch.equal(rows[2], before)
    assert bool((session.states[3:] == 255).all()), "padding and others' pages"
    assert bool((session.states[0] == 255).all()), "the null page"


def test_a_step_that_runs_again_leaves_states_alone(model: Model) -> None:
    session = Session(model)
    row = {"ids": ids_of(20), "start": 0, "table": [1, 2], "state": (0, 1)}
    session.step(row)
    kept = session.states.clone()
    more = {"ids": [5], "start": 20, "table": [1, 2], "state": (1, 0)}
    first, second = (session.step(more)[0] for _ in range(2))
    assert torch.equal(first, second) and torch.equal(session.states, kept)


@pytest.mark.row("R-102")
@pytest.mark.parametrize("accepted", range(5))
@pytest.mark.parametrize("known", [14, 15, 20], ids=str)
def test_rejected_drafts_leave_no_trace(model: Model, known: int, accepted: int) -> None:
    """Four drafts are checked in a step that leaves no state; the next one takes what is accepted.

    Rows of rejected drafts stay in the pages of latent attention until the true tokens come.
    """
    ids, drafts = ids_of(known + 9), ids_of(4, 7)
    right = ids[: known + 1 + accepted]
    drafts[:accepted] = right[known + 1 :]

    def row(start: int, tokens: list[int], before: int, after: int) -> dict:
        return {"ids": tokens, "start": start, "table": [1, 2, 3], "state": (before, after)}

    outcomes = []
    for drafted in (False, True):
        session = Session(model)
        session.step(row(0, ids[:known], 0, 1))
        if drafted:
            kept = session.states.clone()
            (checked,) = session.step(row(known, [ids[known], *drafts], 1, 0))
            assert torch.equal(session.states, kept)
        (taken,) = session.step(row(known, right[known:], 1, 2))
        (after,) = session.step(row(len(right), ids[len(right) :][:3], 2, 2))
        outcomes.append((taken, after, session.states[2].clone()))
    assert torch.equal(checked[: len(right) - known], outcomes[0][0])
    for never, rolled_back in zip(*outcomes, strict=True):
        assert torch.equal(never, rolled_back)


def test_pages_that_cannot_be_are_refused(model: Model) -> None:
    session = Session(model)
    row = {"ids": [1], "start": 3, "table": [1], "state": (1, 1)}
    for state, mark, message in (
        ((0, 1), (0, 0), "there is no state_from"),
        ((9, 1), (0, 0), "state_from is page 9 of 9"),
        ((1, -1), (0, 0), "state_to is page -1 of 9"),
        ((1, 1), (12, 4), "state_mark is page 12 of 9"),
    ):
        with pytest.raises(ValueError, match=message):
            session.step(dict(row, state=state, mark=mark))
    assert bool((session.states == 255).all())
    library = model.library
    with pytest.raises(ValueError, match="multiple"):
        library.bind("states", aligned(torch.zeros(5, dtype=torch.uint8)))
