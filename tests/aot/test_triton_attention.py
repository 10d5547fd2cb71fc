"""Generated attention under Triton's interpreter: windows, sinks, shared heads, splits, chunks, padding, poisoned pages."""

from __future__ import annotations

import pytest

from attention_trials import AttentionTrial, Shape, attention_kernel, layers, steps

from kernelgen.core.dtypes import FLOAT32
from kernelgen.verify.scenario import scenarios

W = 20
DECODE = {"tokens": 32, "splits": 1, "stages": 2, "warps": 4}
PREFILL = {"rows": 32, "tokens": 32, "stages": 2, "warps": 1}
SHAPES = (
    Shape(),
    Shape(4, 4, 64, dtype=FLOAT32),
    Shape(3, 1, 32, sinks=True),
    Shape(5, 1, 64, window=W, sinks=True, norm=False, dtype=FLOAT32),
    Shape(8, 1, 128, window=W, norm=False, rope=0),
    Shape(4, 2, 24, rope=16, dtype=FLOAT32),
)


def _problems(shape: Shape, phase: str, scenario, choice, fused: bool = True) -> list[str]:  # type: ignore[no-untyped-def]
    model = layers(shape)
    kernel = attention_kernel(model, phase, fused=fused)
    return AttentionTrial(model, kernel, choice, scenario, scenario.tokens + 2, layer=1).problems()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("splits", [1, 3])
def test_decode(shape: Shape, splits: int) -> None:
    scenario = scenarios("decode", 512, 7)[-1]
    assert not _problems(shape, "decode", scenario, {**DECODE, "splits": splits})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prefill(shape: Shape) -> None:
    for scenario in scenarios("mixed", 512, 64)[-2:]:
        assert not _problems(shape, "mixed", scenario, PREFILL)


@pytest.mark.parametrize("history", [W - 2, W - 1, W, W + 1, 3 * W])
def test_window_edge(history: int) -> None:
    """The window's last entry is seen, the one before it is not: pages below it hold NaN."""
    shape = Shape(2, 1, 32, window=W, sinks=True, dtype=FLOAT32)
    decode = steps("decode", (history, 1), (0, 1))
    assert not _problems(shape, "decode", decode, {**DECODE, "tokens": 16, "splits": 2})
    chunk = steps("mixed", (history, 3), (0, W + 1))
    assert not _problems(shape, "mixed", chunk, {**PREFILL, "rows": 16, "tokens": 16})


def test_window_of_one() -> None:
    shape = Shape(2, 1, 32, window=1, sinks=True, dtype=FLOAT32)
    assert not _problems(shape, "decode", steps("decode", (37, 1), (0, 1)), {**DECODE, "tokens": 16})
    assert not _problems(shape, "mixed", steps("mixed", (37, 4)), {**PREFILL, "rows": 16})


@pytest.mark.parametrize("splits", [2, 5, 16])
def test_splits_with_and_without_work(splits: int) -> None:
    """Lengths that fill one split, some, and all of them; the merge takes two chunks of eight."""
    shape = Shape(2, 1, 32, dtype=FLOAT32)
    scenario = steps("decode", (300, 1), (16, 1), (0, 1), (255, 1))
    assert not _problems(shape, "decode", scenario, {**DECODE, "tokens": 16, "splits": splits})


def test_padding_rows_are_zeroed_and_requests_without_a_token_are_passed_over() -> None:
    shape = Shape(2, 1, 32, dtype=FLOAT32)
    for phase, choice in (("decode", DECODE), ("mixed", PREFILL)):
        scenario = steps(phase, (20, 1), None, (7, 0), (33, 1), (5, 0), None, (0, 1))
        assert not _problems(shape, phase, scenario, choice)


def test_without_a_prologue() -> None:
    for phase, choice in (("decode", {**DECODE, "splits": 3}), ("mixed", PREFILL)):
        scenario = scenarios(phase, 512, 7)[-1]
        assert not _problems(Shape(), phase, scenario, choice, fused=False)


def test_chunks_of_several_requests() -> None:
    scenario = steps("mixed", (100, 30), (0, 1), (47, 1), None, (16, 17), (0, 40))
    assert not _problems(Shape(3, 1, 32, dtype=FLOAT32), "mixed", scenario, {**PREFILL, "rows": 64})
