"""Grammars in the engine: every choice sees the tokens before it, whatever the schedule is.

The grammar is one that no text of another place fits: what it lets through next depends on every
token so far. Bits of a step that come one token too early, too late, or from another request end
with a token that it refuses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda, FakeGpuLibrary, fake_gpu
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.artifact.open import Artifact
from kernelgen_runtime.errors import LaunchError, RequestError
from kernelgen_runtime.guide.guide import Guide
from kernelgen_runtime.sample.structured import Structured
from runtime_fakes import HYBRID, VOCAB, FakeLibrary, manifest_json, manifest_of, on_gpu, seen
from runtime_fakes import toy_logits as logits_after

from kernelgen.codegen.step_rules import LOGPROB_WORDS, mask_words, rules_layout

WORDS = -(-VOCAB // 32)
BOUND = Structured("regex", ".")
EXTRA = ("min_p", "rules", "logprobs", "logprob_token", "mask")


def allowed_after(tokens: list[int]) -> np.ndarray:
    """Whether each token may come next: about a sixth of them."""
    state = 1
    for token in tokens:
        state = (state * 131 + token + 3) % 1_000_003
    return (np.arange(VOCAB) * 7 + state) % 6 == 0


class Automaton:
    """Stands for a compiled grammar; ends after `length` tokens, breaks at token `breaks`."""

    def __init__(self, length: int, breaks: int = -1) -> None:
        self.tokens: list[int] = []
        self.length, self.breaks, self.fault = length, breaks, ""

    def consume_token(self, token: int) -> bool:
        if not allowed_after(self.tokens)[token] or len(self.tokens) == self.breaks:
            self.fault = f"token {token} does not fit at {len(self.tokens)}"
            return False
        self.tokens.append(token)
        return True

    def is_stopped(self) -> bool:
        return len(self.tokens) >= self.length

    def is_error(self) -> bool:
        return bool(self.fault)

    def get_error(self) -> str:
        return self.fault

    def deep_copy(self) -> Automaton:
        return Automaton(self.length, self.breaks)

    def unsafe_compute_mask_ptr(self, pointer: int, size: int) -> None:
        import ctypes

        padded = np.zeros(32 * WORDS, np.bool_)
        padded[:VOCAB] = allowed_after(self.tokens)
        assert size == 4 * WORDS
        ctypes.memmove(pointer, np.packbits(padded, bitorder="little").tobytes(), size)


class Automata:
    """Takes the place of `Grammars`: the expression says how long the text is."""

    def guide(self, structured: Structured) -> Guide:
        length, _, breaks = structured.text.partition("!")
        return Guide(Automaton(int(length), int(breaks or -1)))


def bound(length: int, breaks: int = -1, **fields: Any) -> SamplingParams:
    text = f"{length}!{breaks}" if breaks >= 0 else str(length)
    fixed: dict[str, Any] = {"max_tokens": 60, "temperature": 0.0, "ignore_eos": True}
    return SamplingParams(**fixed, structured=Structured("regex", text), **fields)


def expected(prompt: list[int], length: int) -> list[int]:
    """The ids alone, one after the other, from whole sequences."""
    tokens: list[int] = []
    while len(tokens) < length:
        x = logits_after(seen([*prompt, *tokens], HYBRID)).copy()
        x[~allowed_after(tokens)] = -np.inf
        tokens.append(int(np.argmax(x)))
    return tokens


def values_with_rules() -> dict[str, Any]:
    values = manifest_json()
    target = values["targets"][0]
    args, rows = target["args"], target["args"]["max_rows"]
    for name in EXTRA:
        bits = "float32" if name == "min_p" else "int32"
        field = {"name": name, "offset": args["words"], "shape": [rows], "bits": bits}
        args["fields"].append(field)
        args["words"] += rows
    layout = rules_layout(VOCAB)
    target["rules"] = {
        "words": layout.words,
        "logprob_words": LOGPROB_WORDS,
        "mask_words": mask_words(VOCAB),
        "fields": [
            {"name": f.name, "offset": f.offset, "shape": list(f.shape), "bits": f.bits}
            for f in layout.fields
        ],
    }
    return values


class _Refining(FakeLibrary):
    """The toy library with `refine`, as far as grammars go."""

    def step(self, plan_id: int, args: torch.Tensor) -> None:
        super().step(plan_id, args)
        for i, row, slot in self._ruled(args):
            # Until `refine` has chosen there is nothing in these places.
            self.buffers["sampled"][i], self.buffers["last_sampled"][slot] = -7, (row + 50) % VOCAB

    def refine(self, plan_id: int, args: torch.Tensor) -> None:
        layout = rules_layout(VOCAB)
        for i, _, slot in self._ruled(args):
            words = self.buffers["rules"][slot]
            x = self.buffers["logits"][i].clone()
            if words[layout.offset("guided")]:
                at = layout.offset("allowed")
                bits = words[at : at + WORDS].numpy().view(np.uint8)
                x[np.unpackbits(bits, bitorder="little")[:VOCAB] == 0] = -torch.inf
            chosen = int(x.argmax())
            self.buffers["sampled"][i] = self.buffers["last_sampled"][slot] = chosen

    def _ruled(self, args: torch.Tensor) -> list[tuple[int, int, int]]:
        fields = {f["name"]: f["offset"] for f in self.values["args"]["fields"]}
        words, found = args.tolist(), []
        for i in range(words[fields["counts"] + 2]):
            row = words[fields["logit_row"] + i]
            if row >= 0 and words[fields["rules"] + row]:
                found.append((i, row, words[fields["row_slot"] + row]))
        return found


class _GpuRefining(FakeGpuLibrary, _Refining):
    def refine(self, plan_id: int, args: torch.Tensor) -> None:
        self.gpu.give(lambda: _Refining.refine(self, plan_id, args), self.gpu.current)


def open_llm(where: str, seed: int = 0, **options: Any) -> LLM:
    values = values_with_rules()
    if where == "gpu":
        values = on_gpu(values)
        manifest = manifest_of(values)
        gpu = FakeCuda(seed=seed)
        with mock.patch("fake_cuda.FakeGpuLibrary", _GpuRefining):
            choice, device, library = fake_gpu(values, manifest, gpu)
        artifact = Artifact((manifest,), Path("toy"))
        with mock.patch("kernelgen_runtime.llm.open_device", lambda _: device):
            llm = LLM(artifact, "random:3", device=choice, library=library, threads=1, **options)
    else:
        artifact = Artifact((manifest_of(values),), Path("toy"))
        options.setdefault("async_scheduling", where == "cpu ahead")
        library = _Refining(values)
        llm = LLM(artifact, "random:3", device="cpu", library=library, threads=1, **options)
    llm.__dict__["grammars"] = Automata()
    return llm


SCHEDULES: dict[str, dict[str, Any]] = {
    "roomy": {"max_num_seqs": 8},
    "few slots": {"max_num_seqs": 2},
    "tight": {"max_num_seqs": 4, "pages": 12, "max_num_batched_tokens": 16},
    "chunks": {"max_num_seqs": 4, "chunk_tokens": 7, "max_num_batched_tokens": 16},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("where", ["cpu", "cpu ahead", "gpu"])
def test_every_choice_sees_all_tokens_before_it(where: str, schedule: str) -> None:
    options = dict(SCHEDULES[schedule])
    if pages := options.pop("pages", 0):
        page_bytes = manifest_of(values_with_rules()).cache.page_bytes
        options |= {"kv_cache_memory_bytes": pages * page_bytes, "max_model_len": 70}
    llm = open_llm(where, seed=len(schedule), **options)
    resumed = mock.Mock(side_effect=llm.program.resume)
    llm.program.resume = resumed  # type: ignore[method-assign]
    prompts = [[5, 6, 7] * 3, [5, 6, 7] * 3, [1], [4, 4], list(range(20)), [9] * 33, [2, 3]]
    lengths = [40, 45, 50, 45, 1, 9, 0]
    plain = SamplingParams(max_tokens=10, temperature=0.0, ignore_eos=True)
    params = [bound(n) if n else plain for n in lengths]
    for _ in range(2):  # again, with what the first time left in the cache
        outputs = llm.generate(prompts, params)
        for prompt, length, output in zip(prompts, lengths, outputs, strict=True):
            assert not output.error
            if length:
                assert list(output.token_ids) == expected(prompt, length)
                assert output.finish_reason == "stop"
            else:
                assert len(output.token_ids) == 10
    assert (resumed.call_count > 0) == (where != "cpu"), "steps are held where two are in flight"
    if schedule == "tight":
        assert llm.engine.scheduler.preemptions > 0
    llm.engine.drain()
    assert not llm.engine.scheduler.has_work


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_work_on_a_gpu(seed: int) -> None:
    llm = open_llm("gpu", seed=seed, max_num_seqs=3)
    prompts = [[seed, 4], [8] * 20, [1, 2, 3], [7, seed]]
    for prompt, output in zip(prompts, llm.generate(prompts, bound(11)), strict=True):
        assert list(output.token_ids) == expected(prompt, 11)


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_a_fault_ends_its_own_request(where: str) -> None:
    llm = open_llm(where, max_num_seqs=4)
    outputs = llm.generate([[1], [2], [3]], [bound(8), bound(8, breaks=3), bound(8)])
    assert [o.finish_reason for o in outputs] == ["stop", "error", "stop"]
    assert (
        outputs[1].error
        == f"structured output: 'token {outputs[1].token_ids[-1]} does not fit at 3'"
    )
    assert list(outputs[2].token_ids) == expected([3], 8)
    assert not llm.engine.scheduler.has_work


def test_who_leaves_disturbs_nobody() -> None:
    llm = open_llm("gpu", max_num_seqs=4)
    stay, leave = (llm.stream([n, 5], bound(14)) for n in (1, 2))
    for generation in (stay, leave):
        generation.begin()
    for _ in range(5):
        llm.engine.step()
    leave.abort()
    while not stay.is_finished:
        llm.engine.step()
    assert stay.request.output_ids == expected([1, 5], 14)
    llm.engine.drain()


def test_a_library_that_refuses_ends_the_step() -> None:
    llm = open_llm("cpu ahead", max_num_seqs=2)
    generation = llm.stream([1, 5], bound(20))
    generation.begin()
    for _ in range(3):
        llm.engine.step()
    with (
        mock.patch.object(llm.library, "refine", side_effect=LaunchError("no")),
        pytest.raises(LaunchError, match="no"),
    ):
        for _ in range(3):
            llm.engine.step()
    assert generation.request.finish_reason == "error"
    assert list(llm.generate([[3]], bound(6))[0].token_ids) == expected([3], 6)


def test_artifacts_of_before_refuse() -> None:
    values = values_with_rules()
    rules = values["targets"][0]["rules"]
    rules["fields"] = [f for f in rules["fields"] if f["name"] not in ("guided", "allowed")]
    artifact = Artifact((manifest_of(values),), Path("toy"))
    llm = LLM(artifact, "random:3", device="cpu", library=_Refining(values), threads=1)
    with pytest.raises(RequestError, match="built without structured output"):
        llm.generate([[1]], bound(3))
    plain = SamplingParams(max_tokens=3, presence_penalty=0.5, temperature=0.0)
    assert len(llm.generate([[1]], plain)[0].token_ids) == 3
    with pytest.raises(RequestError, match="min_tokens: cannot be asked"):
        bound(3, min_tokens=2)
