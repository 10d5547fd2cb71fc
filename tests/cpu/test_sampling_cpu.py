"""Everything a request may ask of sampling, on a small model: the CPU library against the law."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.errors import RequestError
from kernelgen_runtime.sample.detect import detect
from kernelgen_runtime.sample.marking import Marking
from kernelgen_runtime.sample.reference import Rules, edited, kept, likelihood, sample
from kernelgen_runtime.sample.watermark import Watermark

from tests.model_builds import build, small_config

PROMPTS = ([5, 9, 9, 31], [1, 2, 3], list(range(20, 60)), [7])
VOCAB = 96
MARK = Watermark(0xDEADBEEFCAFEF00D)
LAW = ("temperature", "top_k", "top_p", "seed", "min_p")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(small_config(1), tmp_path_factory.mktemp("small"))


def opened(folder: Path, **options: Any) -> LLM:
    return LLM(folder, "random:3", threads=2, device="cpu", **options)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return opened(folder, max_num_seqs=4)


@pytest.fixture(scope="module")
def marking_llm(folder: Path) -> LLM:
    return opened(folder, max_num_seqs=4, watermark=MARK)


def raw_logits(llm: LLM, tokens: Sequence[int], count: int) -> np.ndarray:
    """The model's logits before each of the last `count` tokens."""
    first = len(tokens) - count
    _, decoded = llm.logits(tokens[:first], tokens[first:])
    prompt, _ = llm.logits(tokens[:first])
    return np.concatenate([prompt[-1:], decoded])[:count]


def wanted(
    logits: np.ndarray,
    prompt: Sequence[int],
    tokens: Sequence[int],
    params: SamplingParams,
    ends: Sequence[int] = (),
    mark: Watermark | None = None,
) -> list[int]:
    """What the law chooses at each place of `tokens`, given what came before."""
    law = {name: getattr(params, name) for name in LAW}
    law["temperature"] = float(np.float32(law["temperature"]))
    return [
        sample(
            row,
            len(prompt) + i,
            **law,
            rules=Rules(params, prompt, list(tokens[:i]), ends, mark),
        )
        for i, row in enumerate(logits)
    ]


CASES: dict[str, dict[str, Any]] = {
    "min_p": {"temperature": 3.0, "min_p": 0.3, "seed": 1},
    "min_p_top": {"temperature": 3.0, "min_p": 0.05, "top_k": 20, "top_p": 0.7, "seed": 2},
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.7},
    "repetition_below_1": {"temperature": 1.5, "repetition_penalty": 0.5, "seed": 4},
    "frequency": {"temperature": 0.0, "frequency_penalty": 0.37},
    "presence": {"temperature": 0.8, "presence_penalty": 1.9, "seed": 5, "top_k": 30},
    "all_penalties": {
        "temperature": 1.1,
        "repetition_penalty": 1.3,
        "frequency_penalty": -0.3,
        "presence_penalty": 0.7,
        "top_p": 0.9,
        "seed": 6,
    },
    "bias": {"temperature": 0.0, "logit_bias": {3: 100.0, 4: -100.0, 95: 2.5}},
    "allowed": {"temperature": 1.0, "allowed_token_ids": (3, 17, 95, 64), "seed": 7},
    "allowed_greedy": {"temperature": 0.0, "allowed_token_ids": (3, 17, 95)},
    "bad_word": {"temperature": 0.0, "bad_word_ids": ((17,), (3,))},
    "min_tokens": {"temperature": 2.0, "min_tokens": 9, "stop_token_ids": (3, 4, 5), "seed": 8},
}


@pytest.mark.row("B-08")
@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_the_law(llm: LLM, case: str) -> None:
    params = [SamplingParams(max_tokens=24, **CASES[case])] * len(PROMPTS)
    for output in llm.generate(PROMPTS, params):
        tokens = (*output.prompt_ids, *output.token_ids)
        logits = raw_logits(llm, tokens, len(output.token_ids))
        ends = (2, *params[0].stop_token_ids)
        law = wanted(logits, output.prompt_ids, output.token_ids, params[0], ends)
        assert list(output.token_ids) == law
        assert len(law) >= params[0].min_tokens


@pytest.mark.row("B-08")
def test_bad_words_of_several_tokens(llm: LLM) -> None:
    """The greedy text's own pairs and triples are forbidden; the first of them never ends."""
    (plain,) = llm.generate([[5, 9]], SamplingParams(max_tokens=20, temperature=0.0))
    ids = plain.token_ids
    words = (ids[3:5], ids[6:9], (ids[0],), (ids[1], ids[2], 40, ids[3]))
    params = SamplingParams(max_tokens=20, temperature=0.0, bad_word_ids=words)
    (output,) = llm.generate([[5, 9]], params)
    logits = raw_logits(llm, (5, 9, *output.token_ids), 20)
    assert list(output.token_ids) == wanted(logits, (5, 9), output.token_ids, params, (2,))
    text = " ".join(map(str, ("", *output.token_ids, "")))
    assert all(f" {' '.join(map(str, word))} " not in text for word in words)


@pytest.mark.row("B-08")
def test_any_batch_gives_the_same_tokens(llm: LLM, folder: Path) -> None:
    """Slots, neighbours, chunks and preemption change nothing, of plain rows beside them too."""
    params = [SamplingParams(max_tokens=16, **case) for case in CASES.values()]
    params.append(SamplingParams(max_tokens=16, temperature=1.0, seed=3))
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(len(params))]
    together = [o.token_ids for o in llm.generate(prompts, params)]
    single = [llm.generate([p], [q])[0].token_ids for p, q in zip(prompts, params, strict=True)]
    assert together == single
    pages = 6 * llm.manifest.cache.page_bytes
    tight = opened(folder, max_num_seqs=3, max_model_len=80, kv_cache_memory_bytes=pages)
    tight_tokens = [o.token_ids for o in tight.generate(prompts, params)]
    assert tight_tokens == together


@pytest.mark.row("B-08")
def test_a_slot_remembers_nothing_of_its_last_request(llm: LLM) -> None:
    first = SamplingParams(max_tokens=12, temperature=0.0, allowed_token_ids=(3, 4))
    second = SamplingParams(max_tokens=12, temperature=0.0, frequency_penalty=1.0)
    before = llm.generate([PROMPTS[0]], second)[0].token_ids
    llm.generate([PROMPTS[0]] * 4, first)
    assert llm.generate([PROMPTS[0]], second)[0].token_ids == before


def close(got: Any, meant: Any) -> None:
    assert (got.token, got.rank) == (meant.token, meant.rank)
    assert [i for i, _ in got.likeliest] == [i for i, _ in meant.likeliest]
    for (_, a), (_, b) in zip(
        ((0, got.logprob), *got.likeliest), ((0, meant.logprob), *meant.likeliest), strict=True
    ):
        assert a == pytest.approx(b, abs=2e-6 * max(1.0, abs(b)))


@pytest.mark.row("R-093")
@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_logprobs_are_those_of_the_models_own_logits(llm: LLM, count: int) -> None:
    """Penalties and temperature do not change them, neighbours neither ask nor get any."""
    asking = SamplingParams(
        max_tokens=10, temperature=2.0, seed=4, logprobs=count, presence_penalty=1.0
    )
    plain = SamplingParams(max_tokens=10, temperature=0.0)
    outputs = llm.generate(PROMPTS, [asking, plain, asking, plain])
    for output, params in zip(outputs, (asking, plain, asking, plain), strict=True):
        if params is plain:
            assert output.logprobs is None
            continue
        assert output.logprobs is not None and len(output.logprobs) == len(output.token_ids)
        tokens = (*output.prompt_ids, *output.token_ids)
        logits = raw_logits(llm, tokens, len(output.token_ids))
        for got, row, token in zip(output.logprobs, logits, output.token_ids, strict=True):
            close(got, likelihood(row, token, count))


@pytest.mark.row("R-093")
def test_logprobs_of_chosen_ids(llm: LLM) -> None:
    """In the caller's order, beside rows that ask the likeliest and rows that ask nothing."""
    ids = (95, 0, 3, 95)
    params = [
        SamplingParams(max_tokens=6, temperature=1.0, seed=1, logprob_token_ids=ids),
        SamplingParams(max_tokens=6, temperature=1.0, seed=1, logprobs=3),
        SamplingParams(max_tokens=6, temperature=1.0, seed=1),
    ]
    told, likeliest, plain = llm.generate([PROMPTS[0]] * 3, params)
    assert told.token_ids == likeliest.token_ids == plain.token_ids
    assert told.logprobs is not None and likeliest.logprobs is not None
    logits = raw_logits(llm, (*told.prompt_ids, *told.token_ids), len(told.token_ids))
    for got, other, row in zip(told.logprobs, likeliest.logprobs, logits, strict=True):
        assert (got.token, got.rank, got.logprob) == (other.token, other.rank, other.logprob)
        assert [i for i, _ in got.likeliest] == list(ids)
        for token, value in got.likeliest:
            assert value == pytest.approx(likelihood(row, token, 0).logprob, rel=2e-6, abs=2e-6)


@pytest.mark.row("R-094")
@pytest.mark.parametrize("budget", [7, 64])
def test_prompt_logprobs(folder: Path, budget: int) -> None:
    llm = opened(folder, max_num_seqs=3, max_num_batched_tokens=budget)
    params = SamplingParams(max_tokens=3, temperature=0.0, prompt_logprobs=2)
    for output in llm.generate(PROMPTS, params):
        told = output.prompt_logprobs
        assert told is not None and len(told) == len(output.prompt_ids) and told[0] is None
        logits, _ = llm.logits(output.prompt_ids)
        for got, row, token in zip(told[1:], logits, output.prompt_ids[1:], strict=False):
            close(got, likelihood(row, token, 2))


@pytest.mark.row("R-094")
@pytest.mark.parametrize("rows", [4, 8])
def test_prompt_logprobs_of_many_with_two_steps_in_flight(folder: Path, rows: int) -> None:
    """Of more prompt tokens than a step has room to tell: some are told by runs of their own while
    the step before is still in flight."""
    prompts = [[(7 * i + k) % VOCAB for k in range(30 + i)] for i in range(4)]
    params = SamplingParams(max_tokens=3, temperature=0.0, prompt_logprobs=2)
    told = []
    for is_async in (False, True):
        options = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "logit_rows": rows}
        llm = opened(folder, **options, async_scheduling=is_async)
        told.append([output.prompt_logprobs for output in llm.generate(prompts, params)])
    assert [len(one or ()) for one in told[1]] == [30, 31, 32, 33]
    assert told[0] == told[1]


@pytest.mark.row("R-094")
def test_prompt_logprobs_of_a_known_prompt(folder: Path) -> None:
    """What the cache knows of a prompt was never told: it is computed again, with the same bits."""
    params = SamplingParams(max_tokens=3, temperature=0.0, prompt_logprobs=2)
    (first,) = opened(folder).generate(PROMPTS[2:3], params)
    llm = opened(folder)
    plain = SamplingParams(max_tokens=3, temperature=0.0)
    known = [llm.generate(PROMPTS[2:3], plain)[0].cached_tokens for _ in range(2)]
    (again,) = llm.generate(PROMPTS[2:3], params)
    assert known == [0, 32] and again.cached_tokens == 0
    assert again.prompt_logprobs == first.prompt_logprobs and again.token_ids == first.token_ids
    assert len(again.prompt_logprobs or ()) == len(PROMPTS[2])


@pytest.mark.row("R-096")
@pytest.mark.parametrize(
    "law",
    [
        {"top_k": 5},
        {"top_k": 60, "top_p": 0.8},
        {"top_k": 40, "min_p": 0.4, "repetition_penalty": 1.5},
        {"top_k": 1000},
        {"top_k": 50, "temperature": 0.05},
    ],
)
def test_kept_sets_are_exact(llm: LLM, law: dict[str, Any]) -> None:
    options = {"temperature": 1.5, "seed": 11, "return_sampling_mask": True} | law
    params = SamplingParams(max_tokens=8, **options)
    for output in llm.generate(PROMPTS, params):
        assert output.kept is not None and len(output.kept.starts) == 1 + len(output.token_ids)
        tokens = (*output.prompt_ids, *output.token_ids)
        for i, row in enumerate(raw_logits(llm, tokens, len(output.token_ids))):
            rules = Rules(params, output.prompt_ids, output.token_ids[:i], (2,))
            scaled = kept(
                edited(row, rules), params.temperature, params.top_k, params.top_p, params.min_p
            )
            assert output.kept.row(i).tolist() == np.flatnonzero(np.isfinite(scaled)).tolist()
            assert output.token_ids[i] in output.kept.row(i)


@pytest.mark.row("B-08")
def test_n_choices_have_seeds_of_their_own(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, temperature=2.0, seed=40, n=3)
    outputs = llm.generate([PROMPTS[0], PROMPTS[1]], params)
    assert [o.index for o in outputs] == [0, 1, 2, 0, 1, 2]
    single = [
        llm.generate([p], SamplingParams(max_tokens=8, temperature=2.0, seed=40 + i))[0].token_ids
        for p in PROMPTS[:2]
        for i in range(3)
    ]
    assert [o.token_ids for o in outputs] == single and len(set(single)) == 6
    with pytest.raises(RequestError, match="n: a stream has one choice"):
        llm.stream(PROMPTS[0], params)


@pytest.mark.row("R-111")
@pytest.mark.parametrize("scope", ["none", "single_turn", "all"])
@pytest.mark.parametrize("width", [1, 4, 7])
def test_marked_tokens_are_those_of_the_law(folder: Path, scope: str, width: int) -> None:
    mark = Watermark(2**63 + 12345, width, scope)
    llm = opened(folder, max_num_seqs=3, watermark=mark)
    kinds = ({}, {"top_k": 12, "top_p": 0.95}, {"repetition_penalty": 1.2}, {"min_p": 0.1})
    params = [SamplingParams(max_tokens=40, temperature=0.9, seed=3, **kind) for kind in kinds]
    for output, wished in zip(llm.generate(PROMPTS, params), params, strict=True):
        logits = raw_logits(llm, (*output.prompt_ids, *output.token_ids), len(output.token_ids))
        law = wanted(logits, output.prompt_ids, output.token_ids, wished, (2,), mark)
        assert list(output.token_ids) == law


@pytest.mark.row("R-113")
def test_marking_is_chosen_by_request(llm: LLM, marking_llm: LLM) -> None:
    hot = {"max_tokens": 30, "temperature": 4.0, "seed": 2, "ignore_eos": True}
    params = [
        SamplingParams(**hot),
        SamplingParams(**hot, watermarking=True),
        SamplingParams(**hot, watermarking=False),
        SamplingParams(**hot | {"temperature": 0.0}),
    ]
    before = marking_llm.watermark_requests.copy()
    outputs = marking_llm.generate([PROMPTS[0]] * 4, params)
    counted = marking_llm.watermark_requests - before
    assert counted == {Marking.WATERMARKED: 2, Marking.NOT_WATERMARKED: 1, Marking.SKIPPED: 1}
    unmarked = llm.generate([PROMPTS[0]] * 2, params[2:])
    assert [o.token_ids for o in outputs[2:]] == [o.token_ids for o in unmarked]
    assert outputs[0].token_ids == outputs[1].token_ids != outputs[2].token_ids
    with pytest.raises(RequestError, match="no key is set"):
        llm.generate([PROMPTS[0]], SamplingParams(**hot, watermarking=True))
    with pytest.raises(RequestError, match="greedy choice cannot be marked"):
        SamplingParams(temperature=0.0, watermarking=True)


@pytest.mark.row("R-111")
def test_a_marked_text_is_found_with_its_key_alone(marking_llm: LLM) -> None:
    params = SamplingParams(max_tokens=80, temperature=4.0, seed=9, ignore_eos=True)
    (output,) = marking_llm.generate([PROMPTS[1]], params)
    assert detect(output.token_ids, MARK).p_value < 1e-6
    assert detect(output.token_ids, Watermark(MARK.key + 1)).p_value > 1e-3


@pytest.mark.row("B-08")
def test_ids_outside_the_vocabulary_are_named(llm: LLM) -> None:
    for values in (
        {"allowed_token_ids": (96,)},
        {"logit_bias": {200: 1.0}},
        {"bad_word_ids": ((1, 99),)},
        {"stop_token_ids": (96,)},
    ):
        with pytest.raises(RequestError, match=f"{next(iter(values))}: token ids must be from 0"):
            llm.generate([PROMPTS[0]], SamplingParams(**values))
