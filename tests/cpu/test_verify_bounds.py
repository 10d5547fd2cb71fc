"""Error bounds: float32 and bfloat16 arithmetic lies inside them, a wrong formula outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from kernelgen.core.dtypes import BFLOAT16, FLOAT32, INT32, DType
from kernelgen.ir.expr import arg, call
from kernelgen.ir.graph import Block, BlockBuilder, Role
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Dim, Sizes, Type
from kernelgen.ops import Attention, CacheWrite, Linear, Pointwise, Rope, RowReduce, View
from kernelgen.ops.step import DenseCache, StepView
from kernelgen.verify.bounded import Bounded
from kernelgen.verify.bounds import evaluate_bounded
from kernelgen.verify.evaluate import evaluate_block

TOKENS, WIDTH, OUT = 19, 96, 40
CHAIN = torch.Generator().manual_seed(5)


def chain(dtype: DType) -> Block:
    """Norm, projection, activation times a second input: what a fused kernel does."""
    b = BlockBuilder("chain")
    b.declare("x", Type((Dim.T, WIDTH), dtype), Role.STREAM)
    b.declare("gain", Type((WIDTH,), FLOAT32), Role.WEIGHT)
    b.declare("w", Type((OUT, WIDTH), dtype), Role.WEIGHT)
    b.declare("up", Type((Dim.T, OUT), dtype), Role.STREAM)
    b.apply("stat", RowReduce("mean", arg(0) * arg(0)), "x")
    scaled = arg(0) * call("rsqrt", arg(1) + 1e-5) * arg(2)
    b.apply("norm", Pointwise(scaled, dtype), "x", "stat", "gain")
    b.apply("y", Linear(dtype), "norm", "w")
    b.apply("out", Pointwise(call("silu", arg(0)) * arg(1), dtype), "y", "up")
    return b.build([("out", "out")])


def chain_values(dtype: DType) -> dict[str, torch.Tensor]:
    kind = getattr(torch, dtype.torch)
    shapes = {"x": (TOKENS, WIDTH), "w": (OUT, WIDTH), "up": (TOKENS, OUT), "gain": (WIDTH,)}
    values = {n: torch.randn(s, generator=CHAIN).to(kind) for n, s in shapes.items()}
    values["gain"] = values["gain"].float()
    values["w"] = (values["w"].float() / WIDTH**0.5).to(kind)
    return values


def float32_chain(values: dict[str, torch.Tensor], dtype: DType, columns: int = WIDTH) -> Any:
    """The same in float32, results rounded where ops end; `columns` leaves out the last ones."""
    kind = getattr(torch, dtype.torch)
    x, w = values["x"].float(), values["w"].float()
    norm = (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * values["gain"]).to(kind)
    y = (norm.float()[:, :columns] @ w[:, :columns].T).to(kind).float()
    return (torch.nn.functional.silu(y) * values["up"].float()).to(kind)


def view(tokens: int) -> StepView:
    return StepView(torch.arange(tokens), torch.zeros(tokens, dtype=torch.int64))


def outside(found: torch.Tensor, want: Bounded) -> int:
    """Elements beyond their bound."""
    return int(((found.double() - want.value).abs() > want.error).sum())


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_right_arithmetic_is_inside_and_a_missing_column_outside(dtype: DType) -> None:
    values = chain_values(dtype)
    block = chain(dtype)
    want = evaluate_bounded(block, {n: v.double() for n, v in values.items()}, view(TOKENS))["out"]
    assert outside(float32_chain(values, dtype), want) == 0
    # float32 sees it everywhere, bfloat16 wherever it is more than a unit in the last place
    missing = outside(float32_chain(values, dtype, WIDTH - 1), want)
    assert missing > (0.95 if dtype == FLOAT32 else 0.5) * want.value.numel()


def test_bfloat16_asks_for_the_same_bits_nearly_everywhere() -> None:
    values = chain_values(BFLOAT16)
    exact = {n: v.double() for n, v in values.items()}
    want = evaluate_bounded(chain(BFLOAT16), exact, view(TOKENS))["norm"]
    assert float((want.error == 0).double().mean()) > 0.99
    unit = want.value.abs() * 2.0**-7
    assert bool((want.error <= unit).all())


def attention_block(dtype: DType, window: int | None, sinks: bool) -> Block:
    b = BlockBuilder("attention")
    heads = Type((Dim.T, 4, 16), dtype)
    b.declare("q", heads, Role.STREAM)
    b.declare("k", Type((Dim.T, 2, 16), dtype), Role.STREAM)
    b.declare("v", Type((Dim.T, 32), dtype), Role.STREAM)
    b.declare("kv", Type((2, 16), dtype), Role.STATE)
    b.declare("rows", Type((Dim.T,), INT32), Role.STEP)
    b.declare("positions", Type((Dim.T,), INT32), Role.STEP)
    b.declare("table", Type((64, 2, 4), FLOAT32), Role.TABLE)
    b.declare("sinks", Type((4,), FLOAT32), Role.WEIGHT)
    b.apply("v_heads", View((2, 16)), "v")
    b.apply("k_rope", Rope(dtype), "k", "table", "positions")
    b.apply("q_rope", Rope(dtype), "q", "table", "positions")
    b.apply("cache", CacheWrite(), "kv", "k_rope", "v_heads", "rows")
    more = ("sinks",) if sinks else ()
    b.apply("out", Attention(0.25, window, sinks, dtype), "q_rope", "cache", "rows", *more)
    return b.build([("out", "out")])


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("window, sinks", [(None, False), (5, True)])
def test_attention_in_float32_is_inside_and_another_window_outside(
    dtype: DType, window: int | None, sinks: bool
) -> None:
    history, new = 11, 9
    kind = getattr(torch, dtype.torch)
    step = StepView(torch.arange(history, history + new), torch.zeros(new, dtype=torch.int64))

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=CHAIN).to(kind)

    def cache(convert: Any) -> DenseCache:
        return DenseCache([convert(old[0].clone())], [convert(old[1].clone())])

    old = draw(history + new, 2, 16), draw(history + new, 2, 16)
    named = {"q": draw(new, 4, 16), "k": draw(new, 2, 16), "v": draw(new, 32)}
    named["table"] = torch.rand(64, 2, 4, generator=CHAIN)
    named["sinks"] = torch.randn(4, generator=CHAIN)

    def given(convert: Any) -> dict[str, Any]:
        values: dict[str, Any] = {n: convert(v) for n, v in named.items()}
        return values | {"kv": cache(convert), "rows": step.request, "positions": step.positions}

    def single(width: int | None) -> Any:
        block = attention_block(dtype, width, sinks)
        return evaluate_block(block, given(torch.Tensor.float), step, rounded=True)["out"]

    block = attention_block(dtype, window, sinks)
    want = evaluate_bounded(block, given(torch.Tensor.double), step)["out"]
    assert outside(single(window), want) == 0
    changed = single(6 if window else 19)[-1:]  # the last token sees one entry more, or one less
    last = Bounded(want.value[-1:], want.error[-1:])
    assert outside(changed, last) > 0.9 * changed.numel()


@dataclass(frozen=True)
class Cube(Op):
    """An op that the bounds have never heard of."""

    kind: ClassVar[str] = "cube_for_bounds"
    traits: ClassVar[Trait] = Trait.POINTWISE

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        return (inputs[0],)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        return 2 * inputs[0].elements(sizes)

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        return (inputs[0] * inputs[0] * inputs[0],)


def test_an_op_without_a_rule_is_bounded_by_its_own_float32_error() -> None:
    b = BlockBuilder("cube")
    b.declare("x", Type((Dim.T, WIDTH), FLOAT32), Role.STREAM)
    b.apply("doubled", Pointwise(arg(0) + arg(0), FLOAT32), "x")
    b.apply("out", Cube(), "doubled")
    x = torch.randn(TOKENS, WIDTH, generator=CHAIN)
    want = evaluate_bounded(b.build([("out", "out")]), {"x": x.double()}, view(TOKENS))["out"]
    single = (x + x) ** 3
    assert outside(single, want) == 0
    assert outside(single * 1.001, want) > 0.9 * single.numel() * 0.5
