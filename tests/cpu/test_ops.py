"""References of the ops against torch's own functions, in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from kernelgen.core.dtypes import BFLOAT16, FLOAT32, INT32
from kernelgen.ir.expr import arg, call, const
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Dim, Sizes, Type
from kernelgen.ops import (
    Attention,
    CacheWrite,
    Embed,
    Linear,
    Pointwise,
    Rope,
    RowReduce,
    SelectRows,
    View,
)
from kernelgen.ops.registry import op_kinds
from kernelgen.ops.step import DenseCache, StepView

BOUND = 1e-12
NO_STEP = StepView(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) <= BOUND


def run(op, *inputs, step: StepView = NO_STEP) -> torch.Tensor:
    (out,) = op.reference(inputs, step)
    return out


def test_linear() -> None:
    x, w = random(5, 7), random(9, 7)
    assert close(run(Linear(FLOAT32), x, w), F.linear(x, w))


def test_embed_gives_zeros_outside_the_table() -> None:
    table, ids = random(6, 4), torch.tensor([5, 0, -1, 6, 3])
    out = run(Embed(FLOAT32), ids, table)
    assert close(out[[0, 1, 4]], F.embedding(ids[[0, 1, 4]], table))
    assert not out[[2, 3]].any()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("silu", F.silu),
        ("sigmoid", torch.sigmoid),
        ("tanh", torch.tanh),
        ("exp", torch.exp),
        ("neg", torch.neg),
    ],
)
def test_scalar_functions(name: str, expected) -> None:
    x = random(3, 50)
    assert close(run(Pointwise(call(name, arg(0)), FLOAT32), x), expected(x))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", torch.add),
        ("sub", torch.sub),
        ("mul", torch.mul),
        ("div", torch.div),
        ("max", torch.maximum),
        ("min", torch.minimum),
    ],
)
def test_pointwise_broadcasts_a_row_and_a_number_a_row(name: str, expected) -> None:
    x = random(2, 3, 8)
    op = Pointwise(call(name, arg(0), arg(1)), FLOAT32)
    for other in (random(2, 3, 8, seed=1), random(8), random(2, 3, 1)):
        assert close(run(op, x, other), expected(x, other))


def test_pointwise_of_a_constant_fills_the_shape() -> None:
    assert run(Pointwise(const(2.5), FLOAT32), random(2, 3)).tolist() == [[2.5] * 3] * 2


def test_root_mean_square_norm_of_two_ops() -> None:
    x, w, eps = random(4, 3, 10), random(10), 1e-5
    stat = run(RowReduce("mean", arg(0) * arg(0)), x)
    expr = arg(0) * call("rsqrt", arg(1) + eps) * arg(2)
    out = run(Pointwise(expr, FLOAT32), x, stat, w)
    assert close(out, F.rms_norm(x, (10,), w, eps))


def test_softmax_of_row_reductions() -> None:
    x = random(5, 11)
    top = run(RowReduce("max", arg(0)), x)
    shifted = call("exp", arg(0) - arg(1))
    total = run(RowReduce("sum", shifted), x, top)
    assert close(run(Pointwise(shifted / arg(2), FLOAT32), x, top, total), x.softmax(-1))


@pytest.mark.parametrize("rotated", [3, 8], ids=["part of the head", "whole head"])
def test_rope_is_a_complex_product(rotated: int) -> None:
    x, positions = random(6, 2, 16), torch.tensor([0, 1, 5, 5, 40, 99])
    angles = torch.arange(100, dtype=torch.float64)[:, None] * torch.logspace(0, -2, rotated)
    table = torch.stack([angles.cos(), angles.sin()], dim=1)
    out = run(Rope(FLOAT32), x, table, positions)
    pairs = torch.complex(x[..., :rotated], x[..., rotated : 2 * rotated])
    turned = pairs * torch.polar(torch.ones(()).double(), angles[positions])[:, None]
    expected = torch.cat([turned.real, turned.imag, x[..., 2 * rotated :]], dim=-1)
    assert close(out, expected)


def written(prompts: list[int], kv_heads: int, dim: int) -> tuple[DenseCache, list[torch.Tensor]]:
    keys = [random(n, kv_heads, dim, seed=3) for n in prompts]
    values = [random(n, kv_heads, dim, seed=4) for n in prompts]
    return DenseCache(keys, values), keys


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_against_torch(window: int | None, sinks: bool) -> None:
    length, heads, kv_heads, dim, scale = 12, 6, 2, 8, 0.3
    state, _ = written([length], kv_heads, dim)
    q, sink = random(length, heads, dim), random(heads)
    view = StepView(torch.arange(length), torch.zeros(length, dtype=torch.int64))
    extra = (sink,) if sinks else ()
    out = run(Attention(scale, window, sinks, FLOAT32), q, state, view.request, *extra, step=view)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    mask = (distance >= 0) & (distance < (window or length))
    k, v = (z[0].transpose(0, 1)[None] for z in (state.keys, state.values))
    if sinks:  # a key whose score is the sink and whose value is zero: an additive mask does both
        bias = torch.where(mask, 0.0, -math.inf).double().expand(heads, -1, -1)
        bias = torch.cat([bias, sink[:, None, None].expand(heads, length, 1)], dim=-1)
        k, v = (torch.cat([z, torch.zeros(1, kv_heads, 1, dim).double()], dim=2) for z in (k, v))
    else:
        bias = mask
    expected = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k, v, attn_mask=bias, scale=scale, enable_gqa=True
    )
    assert close(out, expected[0].transpose(0, 1))


def test_attention_reads_only_its_own_request_and_skips_padding() -> None:
    state, _ = written([5, 9], 1, 4)
    q = random(3, 2, 4)
    view = StepView(torch.tensor([8, 0, 4]), torch.tensor([1, -1, 0]))
    out = run(Attention(1.0, None, False, FLOAT32), q, state, view.request, step=view)
    assert not out[1].any()
    for t, row, length in ((0, 1, 9), (2, 0, 5)):
        shares = (q[t] @ state.keys[row][:length, 0].T).softmax(-1)
        assert close(out[t], shares @ state.values[row][:length, 0])


def test_cache_write_stores_at_positions_and_leaves_its_input_alone() -> None:
    state, _ = written([6, 6], 2, 4)
    before = [k.clone() for k in state.keys]
    view = StepView(torch.tensor([3, 0, 5]), torch.tensor([1, -1, 0]))
    keys, values = random(3, 2, 4, seed=8), random(3, 2, 4, seed=9)
    (after,) = CacheWrite().reference([state, keys, values, view.request], view)
    assert torch.equal(after.keys[1][3], keys[0]) and torch.equal(after.values[0][5], values[2])
    assert all(torch.equal(a, b) for a, b in zip(state.keys, before, strict=True))
    changed = sum(
        int((a != b).any(-1).any(-1).sum()) for a, b in zip(after.keys, before, strict=True)
    )
    assert changed == 2


def test_select_and_view() -> None:
    x = random(5, 12)
    assert torch.equal(run(SelectRows(), x, torch.tensor([4, 0, 4])), x[[4, 0, 4]])
    assert torch.equal(run(View((2, 3), offset=6), x), x[:, 6:].reshape(5, 2, 3))
    assert torch.equal(run(View((12,)), x.reshape(5, 3, 4)), x)


T4, T6 = Type((Dim.T, 4), FLOAT32), Type((Dim.T, 6), FLOAT32)
HEADS = Type((Dim.T, 6, 8), FLOAT32)
ROWS = Type((Dim.T,), INT32)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        (Linear(FLOAT32), [T4, Type((9, 5), FLOAT32)]),
        (Pointwise(arg(0) + arg(1), FLOAT32), [T4, T6]),
        (Pointwise(arg(0) + arg(1), FLOAT32), [T4, Type((1,), FLOAT32)]),
        (RowReduce("median", arg(0)), [T4]),
        (Rope(FLOAT32), [HEADS, Type((9, 2, 5), FLOAT32), ROWS]),
        (Attention(1.0, None, False, FLOAT32), [HEADS, Type((4, 8), FLOAT32), ROWS]),
        (Attention(1.0, None, True, FLOAT32), [HEADS, Type((3, 8), FLOAT32), ROWS]),
        (CacheWrite(), [Type((2, 8), FLOAT32), HEADS, HEADS, ROWS]),
        (View((2, 3), offset=1), [T6]),
        (View((3,)), [Type((3,), FLOAT32)]),
        (Embed(FLOAT32), [T4, T4]),
    ],
    ids=lambda v: v.kind if hasattr(v, "kind") else "",
)
def test_shapes_that_do_not_fit_are_refused(op, inputs) -> None:
    with pytest.raises(ValueError):
        op.infer(inputs)


def test_costs() -> None:
    sizes = Sizes(tokens=3, rows=2, context=50)
    x, w = Type((Dim.T, 10), BFLOAT16), Type((7, 10), BFLOAT16)
    assert Linear(FLOAT32).flops([x, w], sizes) == 2 * 3 * 10 * 7
    ids, table = Type((Dim.T,), INT32), Type((1000, 8), BFLOAT16)
    assert Embed(BFLOAT16).read_bytes(1, [ids, table], sizes) == 3 * 8 * 2
    state = Type((2, 8), BFLOAT16)
    inputs = [Type((Dim.T, 6, 8), BFLOAT16), state, ROWS]
    full, window = (Attention(1.0, w, False, BFLOAT16) for w in (None, 5))
    assert full.read_bytes(1, inputs, sizes) == 2 * 50 * (2 * 2 * 8) * 2
    assert window.read_bytes(1, inputs, sizes) == 2 * 5 * (2 * 2 * 8) * 2
    assert window.flops(inputs, sizes) < full.flops(inputs, sizes)


def test_every_op_has_a_kind_of_its_own_and_a_trait() -> None:
    kinds = op_kinds()
    assert {"linear", "attention", "pointwise", "view"} <= set(kinds)
    assert all(cls.traits != Trait(0) for cls in kinds.values())
