"""What may follow a GPU step, interpreted: edited logits, marks, log-probabilities, kept sets."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gpu_trials  # noqa: F401  (switches the interpreter on)
import numpy as np
import pytest
import torch
from kernelgen_runtime import SamplingParams
from kernelgen_runtime.artifact.manifest import ArgsField, RulesSchema
from kernelgen_runtime.launch.details import kept_ids, likelihood_of
from kernelgen_runtime.launch.rules import rule_words
from kernelgen_runtime.sample.reference import Rules, edited, kept, likelihood, sample
from kernelgen_runtime.sample.structured import Structured
from kernelgen_runtime.sample.watermark import Watermark, watermark_uniform, watermark_words

from kernelgen.codegen.cuda.launches import GpuKernel, Pointer
from kernelgen.codegen.rendering import render
from kernelgen.codegen.step_args import ArgsLayout, args_layout
from kernelgen.codegen.step_rules import LOGPROB_WORDS, mask_words
from kernelgen.codegen.triton.following import following_kernels, gpu_rules
from kernelgen.compile.store import Store
from kernelgen.compile.triton import compile_triton
from kernelgen.ir.types import Sizes
from kernelgen.planner.caches import CacheSchema
from kernelgen.verify.interpreter import install, interpret

MAX_ROWS = 8
MARK = Watermark(0xDEADBEEFCAFEF00D)


@cache
def layout() -> ArgsLayout:
    return args_layout(CacheSchema(1, (), {}), 16, MAX_ROWS, 64)


@cache
def kernels(vocabulary: int) -> dict[str, GpuKernel]:
    return following_kernels(layout(), vocabulary)


@cache
def schema(vocabulary: int) -> RulesSchema:
    rules = gpu_rules(vocabulary)
    fields = tuple(ArgsField(f.name, f.offset, f.shape, f.bits) for f in rules.fields)
    return RulesSchema(rules.words, LOGPROB_WORDS, mask_words(vocabulary), fields)


@dataclass
class Steps:
    """Requests in their slots (row i in slot i ^ 1), decoding by what follows a step alone."""

    vocabulary: int
    params: list[SamplingParams]
    prompts: list[list[int]]
    mark: Watermark | None = None
    ends: tuple[int, ...] = ()
    generated: list[list[int]] = field(default_factory=list)
    allowed: dict[int, np.ndarray] = field(default_factory=dict)
    """bits of a grammar, by request"""

    def __post_init__(self) -> None:
        self.generated = self.generated or [[] for _ in self.params]
        rows, words = MAX_ROWS, schema(self.vocabulary)
        self.buffers = {
            Pointer.LOGITS: torch.full((rows, self.vocabulary), float("nan")),
            Pointer.SAMPLED: torch.full((rows,), -7, dtype=torch.int32),
            Pointer.LAST_SAMPLED: torch.full((rows,), -7, dtype=torch.int32),
            Pointer.COUNTERS: torch.zeros(3 * rows, dtype=torch.int32),
            Pointer.RULES: torch.full((rows, words.words), -77, dtype=torch.int32),
            Pointer.LOGPROBS: torch.full((rows, LOGPROB_WORDS), -7, dtype=torch.int32),
            Pointer.MASKS: torch.full((rows, words.mask_words), -7, dtype=torch.int32),
            Pointer.TOKEN_IDS: torch.full((16,), -1, dtype=torch.int32),
            Pointer.POSITIONS: torch.zeros(16, dtype=torch.int32),
            Pointer.ARGS: torch.full((layout().words,), -123456789, dtype=torch.int32),
        }
        for i in range(len(self.params)):
            begin = torch.from_numpy(rule_words(words, self.rules(i)))
            self.buffers[Pointer.RULES][i ^ 1, : len(begin)] = begin
            if i in self.allowed:
                at = gpu_rules(self.vocabulary).offset("allowed")
                bits = torch.from_numpy(self.allowed[i])
                self.buffers[Pointer.RULES][i ^ 1, at : at + len(bits)] = bits

    def rules(self, i: int) -> Rules:
        about = self.params[i], self.prompts[i], self.generated[i], self.ends, self.mark
        return Rules(*about, self.allowed.get(i))

    def give(self, logits: np.ndarray, unruled: tuple[int, ...] = ()) -> None:
        """Arguments of a decode step, and its logits [requests, vocabulary]."""
        count = len(self.params)
        self.buffers[Pointer.LOGITS][:count] = torch.from_numpy(logits)
        self._write("counts", [count, count, count, 0])
        self._write("row_query_start", range(count + 1))
        for i, params in enumerate(self.params):
            known = len(self.prompts[i]) + len(self.generated[i])
            self._write("row_slot", [i ^ 1], i)
            self._write("row_seq_len", [known], i)
            self._write("logit_token", [i], i)
            self._write("logit_row", [i], i)
            for name in ("temperature", "top_p", "min_p"):
                bits = np.array([getattr(params, name)], np.float32).view(np.int32)
                self._write(name, bits.tolist(), i)
            self._write("top_k", [params.top_k], i)
            seed = np.array([params.seed or 0], np.int64).view(np.int32)
            self._write("seed", seed.tolist(), 2 * i)
            self._write("rules", [int(i not in unruled)], i)
            told = -2 if params.logprob_token_ids else params.logprobs
            self._write("logprobs", [-1 if told is None else told], i)
            self._write("logprob_token", [-1], i)
            self._write("mask", [int(params.return_sampling_mask)], i)
            newest = (self.prompts[i] + self.generated[i])[-1]
            self.buffers[Pointer.TOKEN_IDS][i] = newest
            self.buffers[Pointer.POSITIONS][i] = known - 1

    def _write(self, name: str, values: Any, at: int = 0) -> None:
        start = layout().offset(name) + at
        values = torch.tensor(list(values), dtype=torch.int32)
        self.buffers[Pointer.ARGS][start : start + len(values)] = values

    def run(self, name: str) -> None:
        sizes = Sizes(MAX_ROWS, MAX_ROWS, 64, MAX_ROWS)
        for one in kernels(self.vocabulary)[name].passes:
            grid = one.grid(sizes)
            interpret(one.unit, grid, [self.buffers[p] for p in one.parameters])
        assert not self.buffers[Pointer.COUNTERS].any()

    def law(self, i: int, row: np.ndarray) -> int:
        p = self.params[i]
        position = len(self.prompts[i]) + len(self.generated[i])
        temperature = float(np.float32(p.temperature))
        return sample(
            row, position, temperature, p.top_k, p.top_p, p.seed or 0, p.min_p, self.rules(i)
        )

    def follow(self, steps: int, seed: int, scale: float = 2.0) -> None:
        """Decode some tokens, each of which must be that of the law."""
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            shape = (len(self.params), self.vocabulary)
            logits = (scale * rng.standard_normal(shape)).astype(np.float32)
            self.give(logits)
            self.run("refine")
            for i, row in enumerate(logits):
                slot = self.buffers[Pointer.RULES][i ^ 1]
                at = gpu_rules(self.vocabulary).offset("edited")
                found = slot[at : at + self.vocabulary].view(torch.float32).numpy()
                np.testing.assert_array_equal(found, edited(row, self.rules(i)))
                chosen = int(self.buffers[Pointer.SAMPLED][i])
                assert chosen == self.law(i, row), i
                assert int(self.buffers[Pointer.LAST_SAMPLED][i ^ 1]) == chosen
            for i, tokens in enumerate(self.generated):
                tokens.append(int(self.buffers[Pointer.SAMPLED][i]))


PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": -0.4}


@pytest.mark.row("B-08")
@pytest.mark.parametrize("vocabulary", [90, 5000])
def test_edited_logits_have_the_bits_of_the_law(vocabulary: int) -> None:
    """Few logits, and three blocks of them; what a slot held before does not matter."""
    few = tuple(range(0, 90, 7))
    params = [
        SamplingParams(temperature=0.0, **PENALTIES),
        SamplingParams(temperature=0.0, logit_bias={3: 90.0, 89: -100.0, 17: 0.1}, **PENALTIES),
        SamplingParams(temperature=1.5, allowed_token_ids=few, seed=5, repetition_penalty=0.6),
        SamplingParams(temperature=0.7, top_k=9, seed=6, min_tokens=3, logit_bias={5: 30.0}),
        SamplingParams(temperature=0.9, top_p=0.8, seed=7, bad_word_ids=((3,), (88, 89), (1, 2))),
        SamplingParams(temperature=2.0, top_k=40, top_p=0.9, min_p=0.01, seed=8, **PENALTIES),
    ]
    prompts = [[3, 4, 4], [89], [1, 2], [7], [88], list(range(30))]
    generated: list[list[int]] = [[], [17, 17, 4], [7, 14], [5], [1, 88, 1], [40, 41]]
    steps = Steps(vocabulary, params, prompts, None, (5, 6), generated)
    steps.follow(4, seed=vocabulary)


@pytest.mark.row("B-08")
@pytest.mark.parametrize("vocabulary", [90, 5000])
def test_what_a_grammar_lets_through(vocabulary: int) -> None:
    """Few tokens, one, all but one, beside penalties and biases; the row without one is free."""
    rng = np.random.default_rng(vocabulary)
    rows = [rng.random(vocabulary) < share for share in (0.1, 0.5, 0.0, 1.0)]
    rows[2][vocabulary - 1], rows[3][0] = True, False
    allowed = {}
    for i, row in enumerate(rows):
        padded = np.zeros(32 * -(-vocabulary // 32), np.bool_)
        padded[:vocabulary] = row
        allowed[i] = np.packbits(padded, bitorder="little").view(np.int32)
    bound = Structured("regex", ".*")
    params = [
        SamplingParams(temperature=0.0, structured=bound),
        SamplingParams(temperature=1.0, seed=3, top_k=5, structured=bound, **PENALTIES),
        SamplingParams(temperature=1.0, seed=4, logit_bias={3: 90.0}, structured=bound),
        SamplingParams(temperature=0.0, structured=bound, bad_word_ids=((5,),)),
        SamplingParams(temperature=0.0, **PENALTIES),
    ]
    steps = Steps(vocabulary, params, [[1, 2]] * 5, allowed=allowed)
    steps.follow(3, seed=5)
    for i, row in enumerate(rows):
        assert all(row[token] for token in steps.generated[i])
    assert steps.generated[2] == [vocabulary - 1] * 3


@pytest.mark.row("B-08")
def test_words_are_met_by_tokens_that_the_host_has_not_seen() -> None:
    """All but the first token of each word come from steps: the choice is led into them."""
    word = (11, 12, 13, 14)
    params = SamplingParams(temperature=0.0, bad_word_ids=(word, (12, 99)))
    steps = Steps(300, [params], [[1]])
    for token in (*word[:3], 50):
        logits = np.zeros((1, 300), np.float32)
        logits[0, word[len(steps.generated[0])]], logits[0, 50] = 2.0, 1.0
        steps.give(logits)
        steps.run("refine")
        assert int(steps.buffers[Pointer.SAMPLED][0]) == token
        steps.generated[0].append(token)


@pytest.mark.row("R-111")
@pytest.mark.parametrize("scope", ["none", "single_turn", "all"])
@pytest.mark.parametrize("width", [1, 4, 6])
def test_marked_choices(scope: str, width: int) -> None:
    """Few tokens, so that contexts come again; greedy rows are not marked."""
    mark = Watermark(2**63 + 77, width, scope)
    params = [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=1.0, seed=2, top_k=3),
        SamplingParams(temperature=1.0, seed=3, top_p=0.9, presence_penalty=0.5),
        SamplingParams(temperature=0.0, presence_penalty=0.5),
    ]
    again = [2, 3] * 5
    prompts = [[1, *again], [2], [3, *again], [4]]
    steps = Steps(5, params, prompts, mark, generated=[[], list(again), [2, 3, 2], []])
    steps.follow(8, seed=width)


@pytest.mark.row("R-116")
def test_the_history_goes_back_so_far_and_no_further() -> None:
    """A context that stands at the edge of 8192 remembered tokens, and one just beyond it."""
    mark = Watermark(5, 2, "single_turn")
    text = np.random.default_rng(0).integers(10, 4000, 9000).tolist()
    inside, beyond = text[-8190:-8188], text[-8191:-8189]
    for last, fresh in ((inside, False), (beyond, True)):
        generated = [*text[2:], *last]
        steps = Steps(4096, [SamplingParams(seed=1)], [[1]], mark, generated=[generated])
        steps.follow(1, seed=1)
        at = gpu_rules(4096).offset("marked")
        assert bool(steps.buffers[Pointer.RULES][1][at]) == fresh


@pytest.mark.row("B-08")
def test_rows_without_rules_and_rows_with_nan() -> None:
    params = [SamplingParams(temperature=1.0, seed=i, **PENALTIES) for i in range(3)]
    steps = Steps(700, params, [[1], [2], [3]])
    logits = np.random.default_rng(3).standard_normal((3, 700)).astype(np.float32)
    logits[1, 600] = np.nan
    steps.give(logits, unruled=(2,))
    steps.run("refine")
    sampled, last = steps.buffers[Pointer.SAMPLED], steps.buffers[Pointer.LAST_SAMPLED]
    assert sampled[:4].tolist() == [steps.law(0, logits[0]), -2, -7, -7]
    assert last[:4].tolist() == [0, int(sampled[0]), -7, -7]


@pytest.mark.row("R-093")
@pytest.mark.parametrize(
    ("vocabulary", "refused"), [(90, ()), (5000, ()), (5000, ("told 2048, warps 8",))]
)
def test_logprobs(
    vocabulary: int, refused: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = following_kernels(layout(), vocabulary, set(refused))
    monkeypatch.setitem(globals(), "kernels", lambda vocabulary: made)
    ids = (89, 0, 3, 89)
    params = [
        SamplingParams(logprobs=20),
        SamplingParams(logprobs=0),
        SamplingParams(),
        SamplingParams(logprob_token_ids=ids),
    ]
    steps = Steps(vocabulary, params, [[1]] * 4)
    rng = np.random.default_rng(vocabulary)
    logits = (3 * rng.standard_normal((4, vocabulary))).astype(np.float32)
    logits[0, :40] = logits[0].max()  # equal ones: the lowest ids
    steps.give(logits)
    steps._write("logprob_token", [33])
    steps.buffers[Pointer.SAMPLED][:4] = torch.tensor([1, 17, 2, 50], dtype=torch.int32)
    steps.run("logprobs")
    rows = steps.buffers[Pointer.LOGPROBS].numpy()
    assert (rows[2] == -7).all() and (rows[4:] == -7).all()
    for row, token, count in ((0, 33, 20), (1, 17, 0)):
        got, meant = likelihood_of(rows[row], count), likelihood(logits[row], token, count)
        assert (got.token, got.rank) == (meant.token, meant.rank)
        assert [i for i, _ in got.likeliest] == [i for i, _ in meant.likeliest]
        values = [got.logprob, *(v for _, v in got.likeliest)]
        wanted = [meant.logprob, *(v for _, v in meant.likeliest)]
        np.testing.assert_allclose(values, wanted, rtol=2e-6, atol=2e-6)
    told = likelihood_of(rows[3], 4)
    assert told.token == 50 and [i for i, _ in told.likeliest] == list(ids)
    wanted = [likelihood(logits[3], i, 0).logprob for i in ids]
    np.testing.assert_allclose([v for _, v in told.likeliest], wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.row("R-096")
@pytest.mark.parametrize("vocabulary", [90, 5000])
def test_kept_sets(vocabulary: int) -> None:
    """Short lists, ties at the cut, edited rows, and more ids than a list holds."""
    asked = {"return_sampling_mask": True, "temperature": 1.5}
    laws: list[dict[str, Any]] = [
        {"top_k": 5},
        {"top_k": 50, "top_p": 0.7},
        {"top_k": 4000, "min_p": 0.0005},
        {"top_k": 1 << 20},
        {"top_k": 60, "top_p": 0.5, "repetition_penalty": 1.4},
        {"top_k": 3000, "top_p": 0.97},
    ]
    params = [SamplingParams(**asked | law) for law in laws]
    steps = Steps(vocabulary, params, [[1, 2, 3, 5, 8]] * len(params))
    rng = np.random.default_rng(vocabulary)
    logits = (2 * rng.standard_normal((len(laws), vocabulary))).astype(np.float32)
    logits[0] = np.round(logits[0])
    steps.give(logits, unruled=(0, 1, 2, 3, 5))
    steps.run("refine")
    steps.run("keep_masks")
    for i, (p, row) in enumerate(zip(params, logits, strict=True)):
        x = edited(row, steps.rules(i)) if i == 4 else row
        meant = kept(x, p.temperature, p.top_k, p.top_p, p.min_p)
        got = kept_ids(steps.buffers[Pointer.MASKS][i].numpy(), vocabulary)
        assert got.tolist() == np.flatnonzero(np.isfinite(meant)).tolist(), i


PROBE = """import triton
import triton.language as tl

{functions}

@triton.jit
def probe(tokens, states, words, uniforms, N: tl.constexpr):
    i = tl.arange(0, N)
    s0, s1 = tl.load(states).to(tl.uint32), tl.load(states + 1).to(tl.uint32)
    s2, low = tl.load(states + 2).to(tl.uint32), tl.load(states + 3).to(tl.uint32)
    word = mark_word(tl.load(tokens + i), s0, s1, s2, low, tl.load(states + 4).to(tl.uint32))
    tl.store(words + i, word.to(tl.int32, bitcast=True))
    tl.store(uniforms + i, mark_uniform(word))
"""


@pytest.mark.row("R-111")
def test_words_and_uniforms_have_the_bits_of_the_law(tmp_path: Path) -> None:
    from kernelgen_runtime.sample.watermark import context_states

    install()
    path = tmp_path / "probe.py"
    path.write_text(PROBE.format(functions=render("triton/watermark.j2")))
    spec = importlib.util.spec_from_file_location("mark_probe", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    context, tokens = (1, 2, 3, 4), np.arange(151_000, 151_000 + 4096)
    s0, s1, s2, s3 = (int(s[0]) for s in context_states(42, np.array([context])))
    states = torch.tensor([s0, s1, s2, 42 ^ s3, 0x574D544B], dtype=torch.int64)
    words, uniforms = torch.zeros(4096, dtype=torch.int32), torch.zeros(4096)
    ids = torch.from_numpy(tokens.astype(np.int32))
    module.probe[(1,)](ids, states, words, uniforms, 4096)
    meant = watermark_words(42, context, tokens)
    assert np.array_equal(words.numpy().view(np.uint32), meant)
    assert np.array_equal(uniforms.numpy(), watermark_uniform(meant))


def test_large_vocabularies_compile_without_spills(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    units = [one.unit for kernel in kernels(151_936).values() for one in kernel.passes]
    with store.session():
        compiled = compile_triton(units, sms=(90,), store=store, jobs=2)
    assert len(compiled) == 4 and all(k.image.spill_bytes == 0 for k in compiled)


@pytest.mark.parametrize(
    ("name", "word", "widths"),
    [
        ("refine", "edited", (1024, 512, 256, 256)),
        ("keep_masks", "masked", (2048, 1024, 512, 512)),
        ("logprobs", "told", (2048, 1024, 1024)),
    ],
)
def test_what_spilled_is_made_narrower(name: str, word: str, widths: tuple[int, ...]) -> None:
    """As a build asks for it: each refused tile once more, until the narrowest is all there is."""
    refused: set[str] = set()
    for columns in widths:
        unit = following_kernels(layout(), 259, refused)[name].passes[0].unit
        assert unit.tile == f"{word} {columns}, warps 8"
        assert re.search(rf"^(COLUMNS|WIDE) = tl.constexpr\({columns}\)", unit.text, re.M)
        refused.add(unit.tile)


def test_a_choice_that_spilled_has_more_warps() -> None:
    refused: set[str] = set()
    for warps in (8, 16, 16):
        unit = following_kernels(layout(), 259, refused)["refine"].passes[1].unit
        assert (unit.tile, unit.num_warps) == (f"chosen 2048, warps {warps}", warps)
        refused.add(unit.tile)
