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
    options = {"threads": 1} | options
    return LLM(artifact, "random:3", library=FakeLibrary(values), **options)


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
    llm = open_toy(max_num_seqs=1, chunk_tokens=chunk, logit_rows=rows)
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
        ({"kv_cache_memory_bytes": 0, "max_model_len": "auto"}, "none fits"),
        ({"kv_cache_memory_bytes": 128 * 2, "max_model_len": "auto"}, "none fits"),
        ({"max_model_len": "long"}, "max_model_len must be from 1 to 256"),
        ({"scheduling_policy": "fair"}, "scheduling_policy must be fcfs or priority, is 'fair'"),
        ({"prefix_cache_retention_interval": -1}, "prefix_cache_retention_interval must be none"),
        ({"prefix_cache_retention_interval": 2**31}, "from 0 to 2147483647 tokens"),
        ({"async_scheduling": 2}, "async_scheduling must be true, false or none, is 2"),
    ],
)
def test_sizes_that_cannot_work_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(CapacityError, match=word):
        open_toy(**options)


def test_the_longest_that_fits_is_true() -> None:
    assert open_toy(kv_cache_memory_bytes=128 * 10, max_model_len=64).pages == 10
    with pytest.raises(CapacityError):
        open_toy(kv_cache_memory_bytes=128 * 10, max_model_len=65)


@pytest.mark.parametrize("pages", [3, 5, 10, 14, 40, 10**6])
def test_an_automatic_length_is_the_longest_that_fits(pages: int) -> None:
    llm = open_toy(kv_cache_memory_bytes=128 * pages, max_model_len="auto")
    length = llm.limits.max_model_len
    assert llm.pages == pages and length == llm.engine.scheduler.limits.max_model_len
    open_toy(kv_cache_memory_bytes=128 * pages, max_model_len=length)
    if length < 256:
        with pytest.raises(CapacityError, match=f"--max-model-len {length}"):
            open_toy(kv_cache_memory_bytes=128 * pages, max_model_len=length + 1)
    params = SamplingParams(max_tokens=None, temperature=0.0, ignore_eos=True)
    assert len(llm.generate([[1]], params)[0].token_ids) == length - 1
    with pytest.raises(RequestError, match=f"no room in max_model_len {length}"):
        llm.generate([[1] * length], params)


def test_an_automatic_length_without_a_size_is_the_models() -> None:
    assert open_toy(max_model_len="auto").limits.max_model_len == 256


@pytest.mark.row("B-03")
@pytest.mark.row("B-05")
@pytest.mark.row("B-06")
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("pages", [18, 40, 200])
def test_nothing_that_the_engine_decides_changes_a_token(
    caching: bool, asynchronous: bool, pages: int
) -> None:
    """Tight and ample caches, two waves of prompts that begin alike, seeds and greedy."""
    llm = open_toy(
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_model_len=130,
        kv_cache_memory_bytes=128 * pages,
        enable_prefix_caching=caching,
        async_scheduling=asynchronous,
    )
    prompts = [[9] * n + [n] for n in (40, 40, 3, 60, 33, 16, 15)]
    params = [
        SamplingParams(max_tokens=40, temperature=0.8 * (i % 2), top_k=9, seed=i) for i in range(7)
    ]
    for _ in range(2):
        for prompt, param, output in zip(
            prompts, params, llm.generate(prompts, params), strict=True
        ):
            law = {"temperature": float(np.float32(param.temperature)), "top_k": 9}
            wanted = oracle(prompt, len(prompt) + 40, HYBRID, EOS, **law, seed=param.seed or 0)
            assert list(output.token_ids) == wanted
    if pages == 18:
        assert llm.engine.scheduler.preemptions > 0
    counts = llm.engine.scheduler.cache.prefix_counts
    assert (counts.hit > 0) == caching and len(llm.engine._flights) == 0


@pytest.mark.row("R-177")
def test_cached_tokens_are_told_and_can_be_dropped() -> None:
    llm = open_toy()
    params = SamplingParams(max_tokens=2, temperature=0.0)
    prompt = [4] * 50
    told = [llm.generate([prompt], params)[0].cached_tokens for _ in range(2)]
    llm.reset_prefix_cache()
    told += [llm.generate([prompt], params, cache_salt=salt)[0].cached_tokens for salt in "aab"]
    assert told == [0, 48, 0, 48, 0]
    before = llm.engine.scheduler.cache.prefix_counts.queried
    score = llm.score([Case(tuple(prompt))])[0]
    assert np.array_equal(score.prefill_logits, reference(prompt)), "every row, none skipped"
    assert llm.engine.scheduler.cache.prefix_counts.queried == before


def test_priority_decides_who_is_served_first() -> None:
    prompts, params = [[i + 1] * 20 for i in range(6)], SamplingParams(max_tokens=3)
    ranks = [3, 1, 2, 0, 1, 3]
    for policy, order in (("fcfs", [0, 1, 2, 3, 4, 5]), ("priority", [3, 1, 4, 2, 0, 5])):
        llm = open_toy(max_num_seqs=1, scheduling_policy=policy)
        outputs = llm.generate(prompts, params, priority=ranks)
        firsts = [output.timings.first_token for output in outputs]
        assert sorted(range(6), key=firsts.__getitem__) == order


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"priority": 2**31}, "priority must be from -2147483647 to 2147483647"),
        ({"priority": [0, 0]}, "1 prompts and 2 priorities"),
        ({"priority": True}, "priority must be"),
        ({"cache_salt": ""}, "cache_salt must be 1 to 1024 characters"),
        ({"cache_salt": "x" * 1025}, "cache_salt must be"),
    ],
)
def test_absurd_ranks_and_salts(given: dict[str, Any], word: str) -> None:
    llm = open_toy()
    with pytest.raises(RequestError, match=word):
        llm.generate([[1]], SamplingParams(), **given)
    assert not llm.engine.scheduler.has_work


@pytest.mark.parametrize("prompt", [None, b"text", {"prompt": [1]}, {1: 2}])
def test_what_is_no_prompt(prompt: Any) -> None:
    llm = open_toy()
    with pytest.raises(RequestError, match="prompt: must be text or a list of token ids, is "):
        llm.generate([prompt], SamplingParams())
    assert not llm.engine.scheduler.has_work


def test_a_request_that_can_never_fit_is_refused_when_it_comes() -> None:
    """No interface lets one in; the scheduler would wait for ever, so it looks itself."""
    llm = open_toy(kv_cache_memory_bytes=128 * 10, max_model_len=64)
    request = llm.stream([1], SamplingParams(temperature=0.0)).request
    request.length_limit = 200
    with pytest.raises(RequestError, match="up to 200 tokens needs 20 pages, the cache has 9"):
        llm.engine.add(request)
    assert not llm.engine.scheduler.has_work
    llm.engine.abort(request)
    assert len(llm.engine.scheduler.waiting) == 0


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
