"""Bounds of kernels that round where tensor cores make them: inside them, faults outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_verify_bounds import outside, view

from kernelgen.core.dtypes import BFLOAT16, FLOAT32, INT32
from kernelgen.ir.expr import arg, call
from kernelgen.ir.graph import Block, BlockBuilder, Role
from kernelgen.ir.types import Dim, Type
from kernelgen.ops import Attention, Linear, Pointwise, RowReduce, SelectRows
from kernelgen.ops.step import DenseCache
from kernelgen.verify.bounded import AS_WRITTEN, TENSOR_CORES, Arithmetic, Bounded
from kernelgen.verify.bounds import evaluate_bounded

TOKENS, OUT = 33, 256
EPS = 1e-6


def normed_product(width: int, select: bool = False) -> Block:
    """A norm, its projection to float32 numbers (logits) and nothing behind that hides a bit."""
    b = BlockBuilder("head")
    b.declare("x", Type((Dim.T, width), BFLOAT16), Role.STREAM)
    b.declare("gain", Type((width,), BFLOAT16), Role.WEIGHT)
    b.declare("w", Type((OUT, width), BFLOAT16), Role.WEIGHT)
    b.declare("chosen", Type((Dim.B,), INT32), Role.STEP)
    b.apply("stat", RowReduce("mean", arg(0) * arg(0)), "x")
    b.apply("norm", Pointwise(arg(0) * call("rsqrt", arg(1) + EPS) * arg(2), BFLOAT16),
            "x", "stat", "gain")  # fmt: skip
    if select:
        b.apply("rows", SelectRows(), "norm", "chosen")
    b.apply("out", Linear(FLOAT32), "rows" if select else "norm", "w")
    return b.build([("out", "out")])


def product_values(width: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(width)
    shapes = {"x": (TOKENS, width), "gain": (width,), "w": (OUT, width)}
    values = {n: torch.randn(s, generator=made) for n, s in shapes.items()}
    values["gain"] = 0.75 + 0.5 * values["gain"]
    values["w"] /= width**0.5
    values["x"] *= torch.tensor([0.25, 1.0, 4.0]).repeat(TOKENS)[:TOKENS, None]
    return {n: v.bfloat16() for n, v in values.items()}


def deferred(values: dict[str, torch.Tensor], columns: int, exact: bool = False) -> torch.Tensor:
    """What a kernel computes that scales the finished product; `exact` leaves rows in float32."""
    x, gain, w = (values[n].float() for n in ("x", "gain", "w"))
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS)
    rows = x * gain if exact else (x * gain).bfloat16().float()
    return (rows[:, :columns] @ w[:, :columns].T) * scale


def bounds_of(block: Block, values: dict[str, torch.Tensor], how: Arithmetic) -> Bounded:
    given: dict[str, Any] = {n: v.double() for n, v in values.items()}
    given["chosen"] = torch.arange(TOKENS)
    return evaluate_bounded(block, given, view(TOKENS), how)["out"]


@pytest.mark.parametrize("width", [16, 64, 1024, 1536])
def test_a_scale_behind_the_product(width: int) -> None:
    values = product_values(width)
    want = bounds_of(normed_product(width), values, TENSOR_CORES)
    found = deferred(values, width)
    assert outside(found, want) == 0
    assert outside(deferred(values, width, exact=True), want) == 0
    used = ((found - want.value).abs() / want.error).max()
    assert 0.1 < used < 0.9, "neither a bound that allows all, nor one that chance exceeds"
    assert outside(found, bounds_of(normed_product(width), values, AS_WRITTEN)) > OUT


@pytest.mark.parametrize("width", [16, 64, 1024, 1536])
def test_a_missing_column_is_still_outside(width: int) -> None:
    values = product_values(width)
    want = bounds_of(normed_product(width), values, TENSOR_CORES)
    assert outside(deferred(values, width - 1), want) > OUT


def test_a_choice_of_rows_hides_no_scale() -> None:
    values = product_values(64)
    plain, chosen = (
        bounds_of(normed_product(64, select), values, TENSOR_CORES) for select in (False, True)
    )
    assert torch.equal(plain.error, chosen.error)


def test_rows_without_a_statistic_get_no_more_room() -> None:
    b = BlockBuilder("plain")
    b.declare("x", Type((Dim.T, 64), BFLOAT16), Role.STREAM)
    b.declare("w", Type((OUT, 64), BFLOAT16), Role.WEIGHT)
    b.apply("twice", Pointwise(arg(0) + arg(0), BFLOAT16), "x")
    b.apply("out", Linear(FLOAT32), "twice", "w")
    block, values = b.build([("out", "out")]), product_values(64)
    found = [bounds_of(block, values, how).error for how in (AS_WRITTEN, TENSOR_CORES)]
    assert torch.equal(*found)


# --- attention ---------------------------------------------------------------------------------

HEADS, KV_HEADS, DIM, ENTRIES = 4, 2, 64, 300


def attention() -> Block:
    b = BlockBuilder("attention")
    b.declare("q", Type((Dim.T, HEADS, DIM), BFLOAT16), Role.STREAM)
    b.declare("kv", Type((KV_HEADS, DIM), BFLOAT16), Role.STATE)
    b.declare("rows", Type((Dim.T,), INT32), Role.STEP)
    b.apply("out", Attention(0.125, None, False, FLOAT32), "q", "kv", "rows")
    return b.build([("out", "out")])


def online(q: Any, k: Any, v: Any, first: int = 0) -> Any:
    """One query over keys in steps of 32, weights rounded to bfloat16 before they meet values."""
    group = HEADS // KV_HEADS
    k, v = (z.float().repeat_interleave(group, dim=1) for z in (k, v))
    top, total = torch.full((HEADS,), -torch.inf), torch.zeros(HEADS)
    sums = torch.zeros(HEADS, DIM)
    for n in range(first, len(k), 32):
        scores = torch.einsum("hd,nhd->hn", q.float(), k[n : n + 32]) * 0.125
        highest = torch.maximum(top, scores.amax(1))
        weight, scale = torch.exp(scores - highest[:, None]), torch.exp(top - highest)
        total = total * scale + weight.sum(1)
        narrow = weight.bfloat16().float()
        sums = sums * scale[:, None] + torch.einsum("hn,nhd->hd", narrow, v[n : n + 32])
        top = highest
    return sums / total[:, None]


@pytest.mark.parametrize("loud", [1.0, 8.0])
def test_narrow_weights_of_an_online_softmax(loud: float) -> None:
    """`loud` queries look at one entry mostly, others at all."""
    made = torch.Generator().manual_seed(4)
    q, k, v = (
        torch.randn(n, h, DIM, generator=made).bfloat16()
        for n, h in ((1, HEADS), (ENTRIES, KV_HEADS), (ENTRIES, KV_HEADS))
    )
    q = (q.float() * loud).bfloat16()
    step = view(1)
    step.positions[0] = ENTRIES - 1
    given: dict[str, Any] = {"q": q.double(), "rows": step.request}
    given["kv"] = DenseCache([k.double()], [v.double()])
    want = evaluate_bounded(attention(), given, step, TENSOR_CORES)["out"]
    found = online(q[0], k, v)[None]
    assert outside(found, want) == 0
    assert float(((found - want.value).abs() / want.error).max()) < 0.9
    strict = evaluate_bounded(attention(), given, step)["out"]
    assert outside(found, strict) > 0.2 * found.numel()
    if loud == 1.0:  # the first entry has a weight of a 300th, more or less
        assert outside(online(q[0], k, v, first=1)[None], want) > 0.3 * found.numel()
