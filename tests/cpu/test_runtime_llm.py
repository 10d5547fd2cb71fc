"""The offline interface end to end on the toy library: batches, streams, scores, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.artifact.open import Artifact
from kernelgen_runtime.errors import CapacityError, LaunchError, RequestError, TextError
from kernelgen_runtime.scoring import Case
from runtime_fakes import HYBRID, VOCAB, FakeLibrary, manifest_json, manifest_of, oracle, toy_logits

EOS = frozenset((VOCAB - 1,))
PROMPTS = [[5], [1, 2, 3], list(range(40)), [7] * 17, list(range(90, 10, -1)), [3, 1]]


def open_toy(values: dict[str, Any] | None = None, **options: Any) -> LLM:
    values = values or manifest_json()
    artifact = Artifact((manifest_of(values),), Path("toy"))
    return LLM(artifact, "random:3", library=FakeLibrary(values), threads=1, **options)


def library(llm: LLM) -> FakeLibrary:
    assert isinstance(llm.library, FakeLibrary)
    return llm.library


@pytest.mark.row("B-01")
@pytest.mark.parametrize("seqs", [1, 3, 8])
@pytest.mark.parametrize("budget", [7, 16, 64])
def test_batch_equals_each_alone(seqs: int, budget: int) -> None:
    llm = open_toy(max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=200)
    params = [
        SamplingParams(max_tokens=20 + i, temperature=0.7 * (i % 2), top_k=i, top_p=0.9, seed=i - 2)
        for i in range(len(PROMPTS))
    ]
    outputs = llm.generate(PROMPTS, params)
    for prompt, param, output in zip(PROMPTS, params, outputs, strict=True):
        wanted = oracle(
            prompt,
            len(prompt) + (param.max_tokens or 0),
            HYBRID,
            EOS,
            temperature=float(np.float32(param.temperature)),
            top_k=param.top_k,
            top_p=float(np.float32(param.top_p)),
            seed=param.seed,
        )
        assert list(output.token_ids) == wanted and output.prompt_ids == tuple(prompt)
        assert output.finish_reason == ("stop" if wanted[-1] in EOS else "length")
        times = output.timings
        assert 0 < times.arrived <= times.scheduled <= times.first_token <= times.finished


def test_small_batches_take_small_plans_and_padding_does_nothing() -> None:
    """3 requests decode in the plan of 4; the toy library checks the padding row."""
    llm = open_toy(max_num_seqs=8)
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    llm.generate([[1], [2], [3]], params)
    assert ("decode", 4, 3, 3) in library(llm).steps
    llm.generate([[1] * 20], params)
    assert ("mixed", 64, 20, 1) in library(llm).steps
    assert ("decode", 1, 1, 1) in library(llm).steps


def test_requests_without_a_seed_differ_and_with_one_agree() -> None:
    llm = open_toy()
    free = SamplingParams(max_tokens=30, temperature=1.0, ignore_eos=True)
    first, second = llm.generate([[1, 2]] * 2, free)
    assert first.token_ids != second.token_ids
    fixed = SamplingParams(max_tokens=30, temperature=1.0, ignore_eos=True, seed=11)
    first, second = llm.generate([[1, 2]] * 2, fixed)
    assert first.token_ids == second.token_ids


def test_stop_ids_and_eos() -> None:
    llm = open_toy()
    whole = oracle([4, 4], 40)
    stop = whole[7]
    at = whole.index(stop)
    params = SamplingParams(max_tokens=38, temperature=0.0, stop_token_ids=(stop,), ignore_eos=True)
    output = llm.generate([[4, 4]], params)[0]
    assert list(output.token_ids) == whole[: at + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    values = manifest_json()
    values["chat"]["eos_token_ids"] = [stop]
    output = open_toy(values).generate([[4, 4]], SamplingParams(max_tokens=38, temperature=0.0))[0]
    assert (output.finish_reason, output.stop_reason) == ("stop", None)


def test_a_request_may_fill_the_longest_sequence() -> None:
    llm = open_toy(max_model_len=40)
    params = SamplingParams(max_tokens=None, temperature=0.0, ignore_eos=True)
    output = llm.generate([[1] * 39, [2] * 10], params)
    assert [len(o.token_ids) for o in output] == [1, 30]


def test_leaving_a_stream_early_gives_its_pages_back() -> None:
    llm = open_toy()
    generation = llm.stream([1, 2, 3], SamplingParams(max_tokens=50, temperature=0.0))
    for _ in generation:
        break
    iterator = iter(llm.stream([1, 2, 3], SamplingParams(max_tokens=5, temperature=0.0)))
    assert list(iterator) == [], "no tokenizer, no text"
    assert not llm.engine.scheduler.has_work
    pool = llm.engine.scheduler.cache.pool
    assert pool.free_pages == pool.pages - 1


def reference(ids: list[int]) -> np.ndarray:
    rows = [[ids[: i + 1], ids[max(0, i - 19) : i + 1]] for i in range(len(ids))]
    return np.stack([toy_logits(row) for row in rows])


@pytest.mark.parametrize("chunk", [None, 1, 5, 16])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_logits_of_every_position_in_any_chunking(chunk: int | None, rows: int) -> None:
    llm = open_toy(chunk_tokens=chunk, logit_rows=rows)
    prompt, fed = [int(i) for i in np.random.default_rng(0).integers(0, VOCAB, 45)], [9, 8, 96, 0]
    prefill, decode = llm.logits(prompt, fed)
    wanted = reference(prompt + fed)
    assert np.array_equal(prefill, wanted[:45]) and np.array_equal(decode, wanted[45:])
    phases = [step[0] for step in library(llm).steps]
    assert phases.count("decode") >= 4, "fed tokens are decoded one at a time"


def test_scores_of_a_mixed_batch_equal_each_alone() -> None:
    cases = [Case((1, 2, 3), ()), Case(tuple(range(60)), (5,) * 20), Case((9,), (8, 7))]
    llm = open_toy(max_num_seqs=3, logit_rows=8, max_model_len=80)
    for case, score in zip(cases, llm.score(cases), strict=True):
        wanted = reference([*case.prompt_ids, *case.fed_ids])
        assert np.array_equal(np.concatenate([score.prefill_logits, score.decode_logits]), wanted)
    assert not llm.engine.scheduler.has_work


@pytest.mark.parametrize(
    ("prompts", "params", "word"),
    [
        ([[]], {}, "empty"),
        ([[1], [VOCAB]], {}, "is not a token id"),
        ([[-1]], {}, "is not a token id"),
        ([[True]], {}, "is not a token id"),
        ([[1] * 256], {}, "leaves no room"),
        ([[1]], {"stop": ("x",)}, "need a tokenizer"),
    ],
)
def test_unusable_requests_are_refused_before_anything_runs(
    prompts: list[list[int]], params: dict[str, Any], word: str
) -> None:
    llm = open_toy()
    with pytest.raises(RequestError, match=word):
        llm.generate(prompts, SamplingParams(**params))
    assert not llm.engine.scheduler.has_work and not library(llm).steps
    with pytest.raises(TextError):
        llm.generate(["text"])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_num_seqs": 9}, "max_num_seqs must be from 1 to 8"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_model_len": 257}, "max_model_len must be from 1 to 256"),
        ({"max_num_batched_tokens": 65}, "max_num_batched_tokens must be from 1 to 64"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
        ({"kv_cache_memory_bytes": 128 * 10}, "the longest that fits is --max-model-len 64"),
        ({"kv_cache_memory_bytes": 0}, "none fits"),
    ],
)
def test_sizes_that_cannot_work_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(CapacityError, match=word):
        open_toy(**options)


def test_the_longest_that_fits_is_true() -> None:
    assert open_toy(kv_cache_memory_bytes=128 * 10, max_model_len=64).pages == 10
    with pytest.raises(CapacityError):
        open_toy(kv_cache_memory_bytes=128 * 10, max_model_len=65)


def test_a_library_that_answers_nonsense_is_an_error_and_frees_the_request() -> None:
    llm = open_toy()
    library(llm).buffers["sampled"].fill_(-1)
    real = library(llm)._answer
    library(llm)._answer = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match="sampled -1, ids are 0 to"):
        llm.generate([[1]], SamplingParams(max_tokens=2))
    library(llm)._answer = real  # type: ignore[method-assign]
    output = llm.generate([[1]], SamplingParams(max_tokens=2, temperature=0.0))[0]
    assert list(output.token_ids) == oracle([1], 3), "the next request is served"
