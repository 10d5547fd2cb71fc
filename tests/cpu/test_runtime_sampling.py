"""The sampler's reference: golden words, tails, ties, and the law it must follow."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernelgen_runtime.errors import RequestError
from kernelgen_runtime.sample.params import SamplingParams
from kernelgen_runtime.sample.reference import (
    Rules,
    edited,
    gumbel_noise,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    kept,
    likelihood,
    murmur3_words,
    sample,
    uniform,
)

GOLDEN = [
    (0, 0, 0, 0x8134CDF8, 0.5047119838, 0.3529450),
    (42, 0, 0, 0x6F610FE4, 0.4350747998, 0.5602576),
    (42, 0, 1, 0x6AC7E06F, 0.4171123764, 0.6166291),
    (42, 17, 50000, 0x0D5C162A, 0.0521863798, 2.9262547),
    (-1, 5, 9, 0x73E5EF0E, 0.4527272616, 0.5061566),
    (1234567890123, 4095, 151935, 0x02682AB0, 0.0094019586, 4.6621178),
    (42, 2**30 + 17, 50000, 0xF26912C5, 0.9469157917, -1.0770058),
]


@pytest.mark.row("R-092")
@pytest.mark.parametrize(("seed", "position", "token", "word", "u", "noise"), GOLDEN)
def test_golden_vectors(
    seed: int, position: int, token: int, word: int, u: float, noise: float
) -> None:
    tokens = np.array([token])
    words = murmur3_words(seed, position, tokens)
    assert words.tolist() == [word]
    assert uniform(words)[0] == pytest.approx(u, abs=5e-11)
    assert gumbel_noise(seed, position, tokens)[0] == pytest.approx(noise, abs=5e-8)


def test_extreme_words_give_finite_noise() -> None:
    u = uniform(np.array([0, 2**32 - 1], np.uint32))
    noise = -np.log(-np.log1p(-u))
    assert 0 < u[0] and u[1] < 1 and np.isfinite(noise).all()
    assert noise[0] == pytest.approx(-math.log(0.5 * 2**-32), rel=1e-6), "the tail reaches 22.9"


def test_noise_of_a_token_does_not_depend_on_the_vocabulary() -> None:
    small, large = (gumbel_noise(7, 3, np.arange(size)) for size in (100, 5000))
    assert np.array_equal(small, large[:100])


def test_top_k_and_top_p_ties_go_to_the_lowest_id() -> None:
    logits = np.array([1.0, 3.0, 3.0, 3.0, 0.0], np.float32)
    assert np.isfinite(keep_top_k(logits, 2)).tolist() == [False, True, True, False, False]
    assert np.isfinite(keep_top_p(logits, 0.5)).tolist() == [False, True, True, False, False]
    assert np.isfinite(keep_top_p(logits, 1e-9)).tolist() == [False, True, False, False, False]
    assert keep_top_p(logits, 1.0) is logits and keep_top_k(logits, 0) is logits
    assert keep_top_k(logits, 5) is logits


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.3, 0.2]))
    for p, count in ((0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.95, 4)):
        assert np.isfinite(keep_top_p(logits, p)).sum() == count, p


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert sample(np.array([0.0, 5.0, 5.0], np.float32), 0) == 1


@pytest.mark.row("R-092")
def test_gumbel_sampling_follows_softmax() -> None:
    """Chi-square of 20000 draws over 8 tokens; 24.3 is the 99.9% point of 7 degrees."""
    logits = np.array([0.0, 1.0, 2.0, -1.0, 0.5, 1.5, -2.0, 0.25], np.float32)
    draws = 20_000
    counts = np.zeros(8)
    tokens = np.arange(8)
    for position in range(draws):
        counts[np.argmax(logits + gumbel_noise(99, position, tokens))] += 1
    expected = np.exp(logits) / np.exp(logits).sum() * draws
    assert ((counts - expected) ** 2 / expected).sum() < 24.3


@pytest.mark.soak
@pytest.mark.row("R-092")
def test_ten_million_draws_follow_the_law() -> None:
    """Chi-square over 9 ids, the last with probability 2⁻¹⁶; 26.1 is the 99.9% point of 8."""
    law = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02 - 2.0**-16, 2.0**-16])
    ids = np.arange(900_000).reshape(100_000, 9)  # each row draws among ids of its own
    counts = np.zeros(9)
    for position in range(100):
        drawn = np.argmax(np.log(law) + gumbel_noise(2024, position, ids), axis=1)
        counts += np.bincount(drawn, minlength=9)
    wanted = law * counts.sum()
    assert counts.sum() == 10**7 and ((counts - wanted) ** 2 / wanted).sum() < 26.1


@pytest.mark.soak
@pytest.mark.row("R-092")
def test_the_tail_is_as_full_as_it_has_to_be() -> None:
    """Below 2⁻²⁴, where uniforms of 24 bits have nothing, lie 53.6 ± 7.3 of 9 · 10⁸."""
    ids, edge = np.arange(90_000), np.uint32(2**8)  # its uniform is the first above
    assert uniform(np.array([edge - 1, edge])).tolist() == [255.5 / 2**32, 256.5 / 2**32]
    found = sum(
        np.count_nonzero(murmur3_words(seed, position, ids) < edge)
        for seed in range(10, 20)
        for position in range(1000)
    )
    assert 30 <= found <= 79  # 3.3 standard deviations


@pytest.mark.parametrize(
    "values",
    [
        {"max_tokens": 0},
        {"max_tokens": True},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "1"},
        {"top_k": -2},
        {"top_k": 1.5},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_p": math.nan},
        {"seed": 2**63},
        {"seed": "7"},
        {"stop": ("",)},
        {"stop": 5},
        {"stop": tuple("abcdefghijklmnopq")},
        {"stop": ("x" * 1025,)},
        {"stop_token_ids": ["1"]},
        {"stop_token_ids": (-1,)},
        {"ignore_eos": 1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"presence_penalty": 2.1},
        {"frequency_penalty": -2.1},
        {"frequency_penalty": math.nan},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": math.inf},
        {"logit_bias": {1: 101.0}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {"1": 1.0}},
        {"logit_bias": [1.0]},
        {"logit_bias": dict.fromkeys(range(1025), 1.0)},
        {"allowed_token_ids": ()},
        {"allowed_token_ids": (1, -2)},
        {"bad_words": ("",)},
        {"bad_words": ("x",) * 129},
        {"bad_word_ids": ((),)},
        {"bad_word_ids": (tuple(range(17)),)},
        {"min_tokens": -1},
        {"min_tokens": 17},
        {"logprobs": 21},
        {"logprobs": -1},
        {"logprobs": True},
        {"logprob_token_ids": ()},
        {"logprob_token_ids": tuple(range(21))},
        {"prompt_logprobs": 21},
        {"n": 0},
        {"n": 129},
        {"stop_token_ids": tuple(range(65))},
        {"watermarking": "yes"},
        {"return_sampling_mask": None},
        {"return_sampling_mask": True},
    ],
)
def test_wrong_parameters_are_named(values: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**values)
    assert next(iter(values)) in str(caught.value) and len(str(caught.value)) < 400


def test_other_spellings_of_what_is_meant() -> None:
    """Lists, one stop string alone, −1 for no top-k: equal to our own spelling, and hashable."""
    given = SamplingParams(
        stop="end", stop_token_ids=[3], bad_words=["x"], bad_word_ids=[[1, 2]],
        allowed_token_ids=[4], logprob_token_ids=[5], top_k=-1,
    )  # type: ignore[arg-type]  # fmt: skip
    ours = SamplingParams(
        stop=("end",), stop_token_ids=(3,), bad_words=("x",), bad_word_ids=((1, 2),),
        allowed_token_ids=(4,), logprob_token_ids=(5,),
    )  # fmt: skip
    assert given == ours and hash(given) == hash(ours)


def test_parameters_that_exclude_each_other() -> None:
    with pytest.raises(RequestError, match="logprobs: cannot be asked beside"):
        SamplingParams(logprobs=1, logprob_token_ids=(2,))
    with pytest.raises(RequestError, match="return_sampling_mask: needs a temperature above 0"):
        SamplingParams(temperature=0.0, top_k=4, return_sampling_mask=True)
    assert SamplingParams(top_k=4, return_sampling_mask=True).top_k == 4


def test_choices_have_seeds_that_follow() -> None:
    params = SamplingParams(n=3, top_k=7)
    assert [params.choice(i, 5).seed for i in range(3)] == [5, 6, 7]
    assert params.choice(1, 2**63 - 1).seed == -(2**63), "seeds go round"
    assert params.choice(2, 0).n == 1 and params.choice(2, 0).top_k == 7


@pytest.mark.row("B-08")
def test_the_order_of_edits() -> None:
    """By hand: bias, ends, repetition, frequency, presence, bad words; penalties after biases."""
    params = SamplingParams(
        logit_bias={0: 2.0, 1: -3.0},
        min_tokens=4,
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        bad_word_ids=((4, 5), (9, 6), (7,)),
    )
    logits = np.array([1.0, 1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0], np.float32)
    rules = Rules(params, prompt=[0, 1], generated=[2, 4, 4], ends=(3,))
    none = -np.inf
    wanted = [1.5, -4.0, -0.25, none, -3.25, none, 1.0, none, 1.0]
    assert edited(logits, rules).tolist() == wanted
    assert edited(logits, replace(rules, generated=[2, 4, 4, 0])).tolist()[3] == 1.0
    allowed = replace(params, allowed_token_ids=(3, 8), min_tokens=0)
    assert edited(logits, replace(rules, params=allowed)).tolist() == [none] * 3 + [1.0] + [
        none
    ] * 4 + [1.0]


def test_min_p_is_a_share_of_the_likeliest() -> None:
    logits = np.log(np.array([0.5, 0.26, 0.24]))
    for p, count in ((0.0, 3), (0.47, 3), (0.5, 2), (0.53, 1), (1.0, 1)):
        assert np.isfinite(keep_min_p(logits, p)).sum() == count, p
    assert np.isfinite(kept(logits, 1.0, top_k=2, top_p=0.6, min_p=0.1)).sum() == 1


@pytest.mark.row("R-093")
def test_likelihoods_and_ranks() -> None:
    logits = np.log(np.array([0.2, 0.4, 0.2, 0.1, 0.1], np.float32))
    told = likelihood(logits, 2, 3)
    assert (told.rank, told.token) == (2, 2) and told.logprob == pytest.approx(math.log(0.2))
    assert [i for i, _ in told.likeliest] == [1, 0, 2]


def test_all_wrong_parameters_are_told_together() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(temperature=-1, top_p=7, top_k=-3, stop=("y" * 5000,))
    text = str(caught.value)
    assert all(name in text for name in ("temperature", "top_p", "top_k", "stop"))
    assert len(text) < 600
