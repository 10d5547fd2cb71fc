"""Every architecture built and run here: recorded logits, and equal bits however it is fed."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conftest import ENTRY_POINT, HERE, Subject, folders, subject_of
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.errors import CapacityError
from kernelgen_runtime.sample.reference import sample
from kernelgen_runtime.scoring import Case
from model_builds import build, this_isa

from kernelgen.compile.isa import machine_isas
from kernelgen.core.dtypes import FLOAT32
from kernelgen.spec.config import read_config
from kernelgen.verify.model_cases import Case as Recorded
from kernelgen.verify.model_cases import read_cases
from kernelgen.verify.own_cases import own_cases
from kernelgen.verify.parameters import load_parameters

LOGIT_BOUND = 1e-4  # of the largest logit, at least of 1: float32 of two programs


@dataclass(frozen=True)
class Built:
    """A tiny checkpoint, its cases, and builds of it by (fusion, instruction sets)."""

    weights: Path
    cases: tuple[Recorded, ...]
    make: Callable[..., Path]

    def llm(self, folder: Path, **options: int) -> LLM:
        return LLM(folder, self.weights, max_num_seqs=8, max_model_len=96, threads=2, **options)

    @functools.cached_property
    def fused(self) -> LLM:
        return self.llm(self.make(fusion=True))

    @functools.cached_property
    def inputs(self) -> list[Case]:
        return [Case(tuple(c.prompt_ids.tolist()), tuple(c.fed_ids.tolist())) for c in self.cases]

    @functools.cached_property
    def alone(self) -> list[np.ndarray]:
        """Logits of each case by itself, prompt at once."""
        return [rows(self.fused.score([case])[0]) for case in self.inputs]


def rows(score: object) -> np.ndarray:
    return np.concatenate([score.prefill_logits, score.decode_logits])


def write_own(folder: Path, subject: Subject) -> tuple[Recorded, ...]:
    """Seeded weights and cases by the references of the ops: for what transformers has not."""
    from safetensors.torch import save_file
    from seeded import seeded_tensor

    architecture, spec = subject.architecture, subject.spec
    graph = architecture.lower(spec, FLOAT32)
    rules = architecture.checkpoint(spec, graph)
    (folder / "config.json").write_text(json.dumps(dict(subject.config)))
    save_file(
        {r.name: seeded_tensor(r.name, tuple(r.shape), 1) for r in rules},
        folder / "model.safetensors",
    )
    return own_cases(graph, load_parameters(folder, rules), spec.vocab)


@pytest.fixture(scope="module", params=folders(), ids=lambda p: p.name)
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Built]:
    pytest.importorskip("transformers")
    from make_tiny import make

    subject, own = subject_of(request.param), request.param.parent == HERE
    weights = tmp_path_factory.mktemp("weights")
    if own:
        cases = write_own(weights, subject)
    else:
        make(subject.config, weights)
        cases = read_cases(weights / "cases.npz")
    config = read_config(weights / "config.json").data

    @functools.cache
    def made(fusion: bool, isas: tuple[str, ...] = ()) -> Path:
        out = tmp_path_factory.mktemp("out")
        return build(config, out, name="tiny", fusion=fusion, isas=isas)

    with pytest.MonkeyPatch.context() as patch:
        if own:  # as pip would have left it
            info = tmp_path_factory.mktemp("site") / "toy_fifth-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-fifth\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(ENTRY_POINT)
            patch.syspath_prepend(str(info.parent))
        yield Built(weights, cases, made)


def compare(built: Built, logits: list[np.ndarray]) -> None:
    for case, found in zip(built.cases, logits, strict=True):
        wanted = np.concatenate([case.prefill_logits, case.decode_logits])
        bound = LOGIT_BOUND * max(1.0, float(np.abs(wanted).max()))
        assert np.abs(found[: len(wanted)] - wanted).max() <= bound, case.name


@pytest.mark.row("R-043")
@pytest.mark.row("R-044")
def test_recorded_logits(built: Built) -> None:
    """Prompts up to 3 windows and 5 tokens long, then the recorded continuation."""
    compare(built, built.alone)


def test_unfused_gives_the_same_bits(built: Built) -> None:
    unfused = built.llm(built.make(fusion=False))
    for case, wanted in zip(built.inputs, built.alone, strict=True):
        assert np.array_equal(rows(unfused.score([case])[0]), wanted)


def test_a_mixed_batch_gives_the_bits_of_each_alone(built: Built) -> None:
    for score, wanted in zip(built.fused.score(built.inputs), built.alone, strict=True):
        assert np.array_equal(rows(score), wanted)


# One token, less than a page, a page, one more; the longest prompt has several pages.
@pytest.mark.parametrize("chunk", [1, 5, 16, 17])
def test_chunks_give_the_bits_of_one_prefill(built: Built, chunk: int) -> None:
    longest = max(range(len(built.inputs)), key=lambda i: len(built.inputs[i].prompt_ids))
    llm = built.llm(built.make(fusion=True), chunk_tokens=chunk)
    score = llm.score([built.inputs[longest]])[0]
    assert np.array_equal(rows(score), built.alone[longest])


def test_the_step_chooses_the_recorded_ids(built: Built) -> None:
    """Greedy generation, all prompts in one batch: sampling happens inside the step."""
    steps = len(built.cases[0].fed_ids)
    params = SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True)
    outputs = built.fused.generate([case.prompt_ids for case in built.inputs], params)
    assert [o.token_ids for o in outputs] == [case.fed_ids for case in built.inputs]


# What the engine decides: step size, chunk, steps in flight, and a cache that one request of the
# longest kind just fits (None: ample). Several shapes of pressure; each preempts at other places.
SCHEDULES = [(None, 0, False, 4), (16, 0, True, 4), (7, 3, False, 3), (5, 5, True, 8)]


@pytest.mark.row("B-03")
@pytest.mark.row("B-05")
@pytest.mark.row("B-06")
@pytest.mark.parametrize("caching", [True, False])
def test_no_schedule_changes_a_token(built: Built, caching: bool) -> None:
    """Greedy ids under preemption, chunks, shared prefixes and steps in flight: those alone."""
    longest = max(built.inputs, key=lambda case: len(case.prompt_ids)).prompt_ids
    vocab = built.fused.manifest.vocab
    prompts = [[*longest[:n], (7 * n + 1) % vocab] for n in (3, 16, 33, 33, 40, 47)]
    params = SamplingParams(temperature=0.0, max_tokens=44, ignore_eos=True)
    alone = [built.fused.generate([prompt], params)[0].token_ids for prompt in prompts]
    folder, preemptions, hits = built.make(fusion=True), 0, 0
    for budget, chunk, asynchronous, seqs in SCHEDULES:
        tight = None
        if budget is not None:  # as little as one request of this length needs
            with pytest.raises(CapacityError) as caught:
                LLM(folder, built.weights, max_model_len=96, kv_cache_memory_bytes=0)
            tight = int(re.search(r"\((\d+) bytes\)", str(caught.value)).group(1))
        llm = LLM(
            folder,
            built.weights,
            threads=2,
            max_num_seqs=seqs,
            max_model_len=96,
            max_num_batched_tokens=budget,
            chunk_tokens=chunk or None,
            kv_cache_memory_bytes=tight,
            async_scheduling=asynchronous,
            enable_prefix_caching=caching,
        )
        for _ in range(2):
            assert [output.token_ids for output in llm.generate(prompts, params)] == alone
        preemptions += llm.engine.scheduler.preemptions
        hits += llm.engine.scheduler.cache.prefix_counts.hit
    assert preemptions > 0 and (hits > 0) == caching


# Off, each filter by itself, both; the seed differs for every row of the batch.
SAMPLING = [(0.7, 0, 1.0), (1.0, 12, 1.0), (1.2, 0, 0.8), (0.9, 40, 0.9)]


def test_the_step_samples_what_the_reference_samples(built: Built) -> None:
    """Ids drawn inside the step against the law in NumPy, on the logits of the same positions."""
    prompts = [list(built.inputs[-1].prompt_ids[: 5 + row]) for row in range(len(SAMPLING))]
    params = [
        SamplingParams(
            temperature=t, top_k=k, top_p=p, seed=2**40 + row, max_tokens=12, ignore_eos=True
        )
        for row, (t, k, p) in enumerate(SAMPLING)
    ]
    outputs = built.fused.generate(prompts, params)
    assert outputs[0].token_ids != outputs[1].token_ids
    for prompt, given, output in zip(prompts, params, outputs, strict=True):
        score = built.fused.score([Case(tuple(prompt), output.token_ids)])[0]
        for step, (row, chosen) in enumerate(
            zip(rows(score)[len(prompt) - 1 :], output.token_ids, strict=False)
        ):
            at, law = len(prompt) + step, (given.temperature, given.top_k, given.top_p, given.seed)
            assert sample(row, at, *law) == chosen, (given, step)


OTHER_SETS_ON = "llama"  # heads of 12, less than one vector; kernels alone are checked elsewhere


def test_every_library_of_this_machine(
    built: Built, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [i for i in machine_isas(Path("/proc/cpuinfo").read_text()) if i != this_isa()]
    if OTHER_SETS_ON not in request.node.name:
        pytest.skip("one architecture is enough")
    if not here:
        pytest.skip("this processor has one instruction set")
    folder = built.make(fusion=True, isas=tuple(here))
    for isa in here:
        monkeypatch.setenv("KERNELGEN_ISA", isa)
        llm = built.llm(folder)
        assert llm.library.isa == isa
        compare(built, [rows(llm.score([case])[0]) for case in built.inputs])
