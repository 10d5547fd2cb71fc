"""The watermark: golden words, p-values, null law, power, repetition, the detector's command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from kernelgen_runtime.errors import RequestError
from kernelgen_runtime.sample.detect import Detection, detect, gamma_tail
from kernelgen_runtime.sample.params import SamplingParams
from kernelgen_runtime.sample.reference import Rules, sample
from kernelgen_runtime.sample.watermark import (
    Watermark,
    context_of,
    context_states,
    is_fresh,
    philox,
    watermark_uniform,
    watermark_words,
    words_of,
)

from tests.model_builds import kernelgen

GOLDEN = [
    (42, (-1, -1, -1, -1), 0, 0xFA2F6B05, 0.9772860421),
    (42, (-1, -1, -1, -1), 5, 0x5D7436C7, 0.3650545260),
    (42, (-1, -1, -1, 11), 7, 0xD74D794F, 0.8410258984),
    (42, (1, 2, 3, 4), 5, 0x2EB1554C, 0.1823934208),
    (42, (1, 2, 3, 4), 6, 0xCC206E5F, 0.7973698498),
    (0xDEADBEEFCAFEF00D, (10, 20, 30, 40), 151935, 0x2CCE2052, 0.1750202671),
    (42, (9, 8, 7, 6, 5), 123, 0x71A4D7A2, 0.4439215395),
    (42, (3,), 2, 0x70B2F2D4, 0.4402305221),
]
P_VALUES = [(100, 50, 1.178e-8), (50, 50, 0.4812), (130, 100, 2.750e-3), (200, 100, 1.844e-15)]


@pytest.mark.row("R-111")
@pytest.mark.parametrize(("key", "context", "token", "word", "u"), GOLDEN)
def test_golden_words(key: int, context: tuple[int, ...], token: int, word: int, u: float) -> None:
    words = watermark_words(key, context, np.array([token]))
    assert words.tolist() == [word]
    assert float(watermark_uniform(words)[0]) == pytest.approx(u, abs=3.1e-8)  # float32


def test_the_published_answer_of_philox() -> None:
    zero = np.zeros(1, np.uint32)
    found = [int(word[0]) for word in philox([zero] * 4, (zero, zero))]
    assert found == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_uniforms_are_one_rounding_from_the_exact_quotient_and_inside() -> None:
    """The cheap form that kernels have gives the same float32 for every one of 2²⁴ words."""
    n = np.arange(1, 2**24 + 1, dtype=np.float64)
    exact = (n / (2**24 + 1)).astype(np.float32)
    n32 = n.astype(np.float32)
    cheap = n32 * np.float32(2.0**-24) - n32 * np.float32(2.0**-48)
    assert np.array_equal(exact, cheap) and exact.min() > 0 and exact.max() < 1


@pytest.mark.row("R-112")
@pytest.mark.parametrize(("score", "count", "p"), P_VALUES)
def test_golden_p_values(score: float, count: int, p: float) -> None:
    assert gamma_tail(count, score) == pytest.approx(p, rel=5e-4)


def test_p_values_at_the_edges() -> None:
    assert gamma_tail(0, 0.0) == 1.0 and gamma_tail(5, 0.0) == 1.0
    assert gamma_tail(1, 3.0) == pytest.approx(np.exp(-3.0))
    assert gamma_tail(100_000, 100_000.0) == pytest.approx(0.5, abs=2e-3)
    assert detect([], Watermark(1)) == Detection(0.0, 1.0, 0, 0)


def kolmogorov(values: np.ndarray) -> float:
    """Distance to the uniform law, times √n: above 1.95 with probability 0.001."""
    ordered, n = np.sort(values), len(values)
    steps = np.arange(n + 1) / n
    return float(np.sqrt(n) * max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


@pytest.mark.row("R-111")
def test_uniforms_of_a_context_are_uniform() -> None:
    for context in ((-1, -1, -1, -1), (7, 7, 7, 7), (1, 2, 3, 4)):
        u = watermark_uniform(watermark_words(99, context, np.arange(100_000)))
        assert kolmogorov(u.astype(np.float64)) < 1.95


@pytest.mark.row("R-112")
def test_p_values_of_unmarked_text_are_uniform() -> None:
    """600 texts of 1 to 120 random tokens; of 5 tokens some, whose contexts come again."""
    rng = np.random.default_rng(1)
    found = []
    for i in range(600):
        tokens = rng.integers(0, 50_000 if i % 2 else 5, rng.integers(1, 121)).tolist()
        found.append(detect(tokens, Watermark(1000 + i)).p_value)
    assert kolmogorov(np.array(found)) < 1.95


def generated(
    logits: np.ndarray, mark: Watermark | None, count: int, seed: int, greedy: bool = False
) -> list[int]:
    """Tokens of a model that gives the same logits everywhere."""
    params, tokens = SamplingParams(seed=seed), []
    for position in range(count):
        rules = Rules(params, [0], tokens, mark=mark)
        tokens.append(sample(logits, position + 1, 0.0 if greedy else 1.0, seed=seed, rules=rules))
    return tokens


@pytest.mark.row("R-111")
def test_marked_text_has_the_law_of_ordinary_text() -> None:
    """Chi-square of 20,000 marked draws over 8 tokens; 24.3 is the 99.9% point of 7 degrees."""
    assert departure(np.array([0.0, 1.0, 2.0, -1.0, 0.5, 1.5, -2.0, 0.25]), 20_000) < 24.3


def departure(logits: np.ndarray, draws: int) -> float:
    """Chi-square of marked draws, each after a context of its own."""
    size, counts = len(logits), np.zeros(len(logits))
    for first in range(0, draws, 10_000):
        numbers = np.arange(first, min(first + 10_000, draws))
        states = context_states(77, np.stack([numbers, numbers % 7, numbers // 7], 1))
        each = [np.repeat(word, size) for word in states]
        words = words_of(77, each, np.tile(np.arange(size), len(numbers)))
        u = watermark_uniform(words).astype(np.float64).reshape(-1, size)
        counts += np.bincount((logits - np.log(-np.log(u))).argmax(1), minlength=size)
    expected = np.exp(logits) / np.exp(logits).sum() * draws
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.soak
@pytest.mark.row("R-111")
def test_marked_text_has_the_law_of_ordinary_text_in_a_million_draws() -> None:
    """Over 64 tokens down to a probability of 2e-4; 103.4 is the 99.9% point of 63 degrees."""
    assert departure(np.linspace(0, -8, 64), 1_000_000) < 103.4


@pytest.mark.row("R-111")
def test_power_grows_with_the_text_and_greedy_text_has_none() -> None:
    logits = np.zeros(200, np.float32)
    mark = Watermark(2**64 - 1)
    tokens = generated(logits, mark, 60, seed=1)
    values = [detect(tokens[:n], mark).p_value for n in (5, 20, 60)]
    assert values[0] > values[1] > values[2] and values[2] < 1e-10
    assert detect(generated(logits, None, 60, seed=1), mark).p_value > 0.01
    flat = generated(np.linspace(0, 1, 200), mark, 60, seed=1, greedy=True)
    assert detect(flat, mark).num_scored_tokens <= 5


def false_alarms(texts: Sequence[list[int]]) -> int:
    return sum(detect(t, Watermark(31 * i + 7)).is_watermarked for i, t in enumerate(texts))


@pytest.mark.row("R-116")
def test_repetitive_text_raises_no_false_alarms() -> None:
    """1000 texts that loop: at 1% at most 1.5% are wanted, more than 21 have probability 0.001."""
    rng = np.random.default_rng(4)
    texts = [(rng.integers(0, 500, 12).tolist() * 20)[:200] for _ in range(1000)]
    assert false_alarms(texts) <= 15


@pytest.mark.row("R-116")
@pytest.mark.parametrize("scope", ["none", "single_turn", "all"])
def test_a_context_is_used_once(scope: str) -> None:
    mark = Watermark(1, 2, scope)
    assert is_fresh(mark, [5, 6], []) and is_fresh(mark, [5, 6], [5])
    assert is_fresh(mark, [1, 5, 6, 2], [5, 6]) == (scope != "all")
    assert is_fresh(mark, [], [5, 6, 7, 5, 6]) == (scope == "none")
    assert is_fresh(mark, [], [5, 5]) and is_fresh(mark, [], [5, 5, 5]) == (scope == "none")
    long = [5, 6, *range(10, 8200), 5, 6]
    assert is_fresh(mark, [], long[:2] + long[4:]) == (scope == "none")
    assert is_fresh(mark, [], long)
    assert context_of([1, 2, 3], 2) == (2, 3) and context_of([1], 3) == (-1, -1, 1)


@pytest.mark.row("R-116")
def test_a_loop_is_left_to_ordinary_noise() -> None:
    """Two tokens: with one context kept for good a marked text would repeat itself for ever."""
    mark, again = Watermark(3, 1), Watermark(3, 1, "none")
    logits = np.zeros(2, np.float32)
    assert len({tuple(generated(logits, mark, 60, seed)) for seed in range(5)}) == 5
    assert len({tuple(generated(logits, again, 60, seed)) for seed in range(5)}) == 1


def test_the_key_is_in_no_text() -> None:
    assert "123456" not in repr(Watermark(123456))
    for values in ({"key": -1}, {"key": 2**64}, {"key": "123456"}, {"key": True}):
        with pytest.raises(RequestError, match="key: must be") as caught:
            Watermark(**values)  # type: ignore[arg-type]
        assert "123456" not in str(caught.value)
    with pytest.raises(RequestError, match="context_width: must be from 1 to 64"):
        Watermark(1, 65)
    with pytest.raises(RequestError, match="must be one of none, single_turn, all"):
        Watermark(1, 4, "some")


@pytest.mark.row("R-112")
def test_the_command(tmp_path: Path) -> None:
    marked = generated(np.zeros(500, np.float32), Watermark(77), 80, seed=1)
    plain = generated(np.zeros(500, np.float32), None, 80, seed=1)
    file, key = tmp_path / "texts.jsonl", tmp_path / "key"
    file.write_text(f"{marked}\n\n{json.dumps({'token_ids': plain})}\n{' '.join('123')}\n")
    key.write_text("0x4d\n")
    done = kernelgen("watermark", "detect", file, "--key-file", key, "--json")
    assert done.returncode == 0, done.stderr
    first, second, third = json.loads(done.stdout)
    assert first["is_watermarked"] and first["p_value"] < 1e-10
    assert first["num_scored_tokens"] == first["num_tokens"] == 80
    assert not second["is_watermarked"] and third["num_tokens"] == 3
    text = kernelgen("watermark", "detect", file, KERNELGEN_WATERMARK_KEY="77").stdout
    assert "line 1: watermarked, p " in text and "line 3: no watermark found" in text


@pytest.mark.row("R-111")
@pytest.mark.row("R-112")
@pytest.mark.parametrize(("key", "width"), sorted({(key, len(at)) for key, at, *_ in GOLDEN}))
def test_the_command_scores_the_golden_vectors(tmp_path: Path, key: int, width: int) -> None:
    """A text that ends with a vector's token has the score of that vector more than before."""
    file, wanted, texts = tmp_path / "texts", [], []
    for of, context, token, _, u in GOLDEN:
        if (of, len(context)) == (key, width):
            before = [id for id in context if id >= 0]
            texts += [before or [1], [*before, token]]  # [1] stands for no text, which scores 0
            wanted.append((-np.log1p(-u), bool(before)))
    file.write_text("\n".join(map(json.dumps, texts)))
    options = ("--context-width", width, "--json")
    done = kernelgen("watermark", "detect", file, *options, KERNELGEN_WATERMARK_KEY=str(key))
    assert done.returncode == 0, done.stderr
    scores = [one["score"] for one in json.loads(done.stdout)]
    for (gain, goes_on), before, after in zip(wanted, scores[::2], scores[1::2], strict=True):
        assert after - before * goes_on == pytest.approx(gain, rel=1e-5)


@pytest.mark.parametrize(
    ("content", "key", "words"),
    [
        ("1 2 x", "81529346", "no list of token ids"),
        ("", "81529346", "holds no text"),
        ("[1, -2]", "81529346", "no list of token ids"),
        ("1 2", "", "holds no key"),
        ("1 2", "secret", "holds no whole number"),
        ("1 2", str(2**64), "key: must be"),
    ],
)
def test_wrong_input_is_one_line(tmp_path: Path, content: str, key: str, words: str) -> None:
    file = tmp_path / "texts"
    file.write_text(content)
    done = kernelgen("watermark", "detect", file, KERNELGEN_WATERMARK_KEY=key)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) <= 2 and "secret" not in done.stderr
    assert key not in done.stderr or not key
