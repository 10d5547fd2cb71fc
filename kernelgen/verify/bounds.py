"""Owns how far a float32 computation of an op may lie from its exact result: error analysis.

Every value of a sub-graph is evaluated in float64 together with a bound on the distance at which a
correct kernel may end up. The rules, fixed here and nowhere else:

* One float32 operation adds u = 2⁻²⁴ of its result; library functions (exp, tanh …) add 8 u.
* A sum of n products adds u·(8 + 2·√n)·Σ|products|. Rounding errors of a sum walk at random: their
  spread is below u·√(n/3)·Σ|products| even where all products have one sign, so this is more than
  three deviations there and more than eight for mixed signs, at any n, in any order of summation.
* What an operand may be off goes through the op: |w| for a product, both ends of the interval for a
  scalar function.
* A result stored as bfloat16 is rounded at the op's end, fused or not. Rounding is monotone, so the
  kernel's number lies between round(v − e) and round(v + e). Where no rounding boundary is that
  close, which is nearly everywhere, this asks for the very same bfloat16.

A wrong kernel is far outside: one missing column of K = 1536 is off by a hundred times the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelgen.core.dtypes import BFLOAT16
from kernelgen.ir.graph import Block
from kernelgen.ir.op import Op, Trait
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
from kernelgen.ops.step import DenseCache, StepView
from kernelgen.verify.bounded import (
    LIBRARY,
    TINY,
    Bounded,
    U,
    bounded_expression,
    exact,
    rounded,
    summed,
)


def evaluate_bounded(
    block: Block, outside: Mapping[str, Any], view: StepView
) -> dict[str, Bounded]:
    """Every value of the block with its bound; `outside` is exact.

    `outside` holds float64 and int64 tensors, and `DenseCache` of float64 tensors. The choice of a
    token is no number and is left out: `sampling` says which ids are right.
    """
    found = {v.name: exact(outside[v.name]) for v in block.values if v.name not in block.producer}
    for node in block.nodes:
        if node.op.has(Trait.SAMPLE):
            continue
        inputs = [found[name] for name in node.inputs]
        values = node.op.reference([i.value for i in inputs], view)
        errors = _rule(node.op)(node.op, inputs, values, view)
        for name, value, error in zip(node.outputs, values, errors, strict=True):
            if isinstance(value, DenseCache):
                found[name] = Bounded(value, error)
            else:
                narrow = block.value[name].type.dtype == BFLOAT16
                found[name] = rounded(value, error) if narrow else Bounded(value, error)
    return found


Rule = Callable[[Any, Sequence[Bounded], Sequence[Any], StepView], Sequence[Any]]


def _moved(op: Op, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView) -> Any:
    """Ops that only move numbers move their errors along."""
    return op.reference([inputs[0].error, *(i.value for i in inputs[1:])], view)


def _none(op: Op, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView) -> Any:
    import torch

    return [torch.zeros_like(v) for v in values]


def _linear(op: Op, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView) -> Any:
    x, weight = inputs
    size = weight.value.abs()
    spread = x.value.abs() * summed(weight.value.shape[1]) + x.error
    return [spread @ size.T + U * values[0].abs() + TINY]


def _pointwise(
    op: Pointwise, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView
) -> Any:
    return [bounded_expression(op.expr, inputs).error.expand(values[0].shape)]


def _reduce(op: RowReduce, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView) -> Any:
    element = bounded_expression(op.expr, inputs)
    shape = inputs[0].value.shape
    size, error = element.value.abs().expand(shape), element.error.expand(shape)
    if op.how == "max":
        return [error.amax(-1, keepdim=True)]
    total = error.sum(-1, keepdim=True) + summed(shape[-1]) * size.sum(-1, keepdim=True)
    return [(total / shape[-1] if op.how == "mean" else total) + U * values[0].abs() + TINY]


def _rope(op: Rope, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView) -> Any:
    import torch

    x, table, positions = (i.value for i in inputs)
    spread = 3 * U * x.abs() + inputs[0].error
    half = table.shape[-1]
    cos, sin = (table[positions, i].abs()[:, None, :] for i in (0, 1))
    a, b = spread[..., :half], spread[..., half : 2 * half]
    passed = inputs[0].error[..., 2 * half :]
    return [torch.cat((a * cos + b * sin + TINY, b * cos + a * sin + TINY, passed), dim=-1)]


def _write(op: Op, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView) -> Any:
    state, keys, cached, rows = inputs
    return op.reference([state.error, keys.error, cached.error, rows.value], view)


def _attention(
    op: Attention, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView
) -> Any:
    import torch

    error = torch.zeros_like(values[0])
    for row in sorted({r for r in view.request.tolist() if r >= 0}):
        mine = torch.nonzero(view.request == row).flatten()
        error[mine] = _attention_row(op, inputs, row, mine, view.positions[mine])
    return [error]


def _attention_row(
    op: Attention, inputs: Sequence[Bounded], row: int, mine: Any, positions: Any
) -> Any:
    """The tokens of one request: errors of scores become relative errors of softmax weights."""
    import torch

    first = max(0, int(positions.min()) - op.window + 1) if op.window else 0
    span = slice(first, int(positions.max()) + 1)
    q, q_error = inputs[0].value[mine], inputs[0].error[mine]
    group = q.shape[1] // inputs[1].value.keys[row].shape[1]
    value, error = inputs[1].value, inputs[1].error
    k, v, k_error, v_error = (
        side[row][span].repeat_interleave(group, dim=1)
        for side in (value.keys, value.values, error.keys, error.values)
    )
    at = torch.arange(span.start, span.stop)
    hidden = at[None, :] > positions[:, None]
    if op.window:
        hidden |= positions[:, None] - at[None, :] >= op.window

    def scores(a: Any, b: Any) -> Any:
        return torch.einsum("thd,nhd->thn", a, b).masked_fill(hidden[:, None], 0)

    exact_scores = scores(q, k) * op.scale
    spread = scores(q.abs(), k.abs()) * summed(q.shape[-1])
    spread += scores(q_error, k.abs()) + scores(q.abs(), k_error)
    off = spread * abs(op.scale) + 6 * U * exact_scores.abs()
    shown = exact_scores.masked_fill(hidden[:, None], float("-inf"))
    if op.sinks:
        sink = inputs[3].value.double()[None, :, None].expand(shown.shape[0], -1, 1)
        weights = torch.softmax(torch.cat([shown, sink], dim=-1), dim=-1)[..., :-1]
        off = torch.cat([off, 6 * U * sink.abs()], dim=-1)
    else:
        weights = torch.softmax(shown, dim=-1)
    relative = torch.expm1(2 * off.amax(-1, keepdim=True)) + 2 * LIBRARY + summed(len(at))
    size = torch.einsum("thn,nhd->thd", weights, v.abs().nan_to_num())
    moved = torch.einsum("thn,nhd->thd", weights, v_error.nan_to_num())
    return size * relative + moved + TINY


def _unknown(op: Op, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView) -> Any:
    """An op that came with an architecture: 16 times what its own reference is off in float32.

    Errors of its inputs are followed by moving every input to either end of its interval.
    """
    import torch

    def run(pick: Callable[[Bounded], Any]) -> Sequence[Any]:
        return op.reference([pick(i) for i in inputs], view)

    def single(i: Bounded) -> Any:
        floating = isinstance(i.value, torch.Tensor) and i.value.is_floating_point()
        return i.value.float() if floating else i.value

    lower, upper = run(lambda i: _shifted(i, -1)), run(lambda i: _shifted(i, 1))
    found = []
    for value, low, high, near in zip(values, lower, upper, run(single), strict=True):
        moved = torch.maximum((high - value).abs(), (low - value).abs())
        own = (near.double() - value).abs().amax() + LIBRARY * value.abs()
        found.append(2 * moved + 16 * own + TINY)
    return found


def _shifted(bounded: Bounded, sign: int) -> Any:
    value = bounded.value
    if isinstance(value, DenseCache) or not value.is_floating_point():
        return value
    return value + sign * bounded.error


_RULES: Mapping[type[Op], Rule] = {
    View: _moved,
    SelectRows: _moved,
    Embed: _none,
    Linear: _linear,
    Pointwise: _pointwise,
    RowReduce: _reduce,
    Rope: _rope,
    CacheWrite: _write,
    Attention: _attention,
}


def _rule(op: Op) -> Rule:
    return _RULES.get(type(op), _unknown)
