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

Tensor cores multiply bfloat16 only, so that kernels for them may round at three other places (see
`Arithmetic`), and there the bounds are wider. With n = 2⁻⁸, the most that one rounding to bfloat16
may cost, relative to its value:

* Rows under a norm's scale s: the op says round(x·s·g), the kernel takes round(x·g) and scales the
  finished sum. Each term y·w of the sum has two roundings of at most n·|y·w|, and none knows of the
  others: their sum spreads by less than n·√(2/3)·√Σ(y·w)². Six deviations are 5·n·√Σ(y·w)², and
  2·n·Σ|y·w| is never exceeded: the bound is the smaller one.
* Softmax weights p: one rounding a term, so 3.5·n·√Σ(p·v)² and at most n·Σ|p·v|. They add up in an
  online softmax, which scales what it has whenever the largest score grows: at most once an entry,
  two float32 roundings each, which counts as one more sum of as many terms.
* Weights of a packed matrix, once they have their scale: one rounding a term, so 3.5·n·√Σ(y·w)² and
  at most n·Σ|y·w|. Where a row has one scale, it meets the finished sum and nothing is rounded.

A wrong kernel is far outside: one missing column of K = 1536 is off by a hundred times the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelgen.core.dtypes import BFLOAT16
from kernelgen.formats import WeightFormat
from kernelgen.formats.format import WHOLE
from kernelgen.ir.graph import Block, Node
from kernelgen.ir.op import Op, Trait
from kernelgen.ops import (
    Attention,
    CacheWrite,
    ChooseExperts,
    Embed,
    ExpertLinear,
    Linear,
    MapExperts,
    Pointwise,
    Rope,
    RowReduce,
    SelectRows,
    SumExperts,
    View,
    WeighExperts,
)
from kernelgen.ops.cache_write import narrow
from kernelgen.ops.step import DenseCache, StepView
from kernelgen.verify.attention_bounds import attention_error, weights_rounded
from kernelgen.verify.bounded import (
    AS_WRITTEN,
    LIBRARY,
    NARROW,
    TINY,
    Arithmetic,
    Bounded,
    U,
    bounded_expression,
    exact,
    rounded,
    summed,
)
from kernelgen.verify.expert_bounds import (
    expert_product_error,
    expert_sum_error,
    scaled_weights_rounded,
    weights_error,
)


def evaluate_bounded(
    block: Block,
    outside: Mapping[str, Any],
    view: StepView,
    arithmetic: Arithmetic = AS_WRITTEN,
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
        more = _elsewhere(block, node, inputs, view, arithmetic)
        if more is not None:
            errors = [errors[0] + more]
        for name, value, error in zip(node.outputs, values, errors, strict=True):
            if isinstance(value, DenseCache):
                found[name] = Bounded(value, error)
            else:
                narrow = block.value[name].type.dtype == BFLOAT16
                found[name] = rounded(value, error) if narrow else Bounded(value, error)
    return found


def _elsewhere(
    block: Block, node: Node, inputs: Sequence[Bounded], view: StepView, arithmetic: Arithmetic
) -> Any:
    """What rounding at other places than the op says may cost; None where there are none."""
    op = node.op
    if isinstance(op, Linear):
        found = []
        if arithmetic.scales_products and _is_scaled(block, node.inputs[0]):
            found.append(_rounded_unscaled(*inputs))
        if arithmetic.narrow_weights and _is_grouped(block, node):
            found.append(_rounded_weights(*inputs))
        return sum(found) if found else None
    if isinstance(op, ExpertLinear) and arithmetic.narrow_weights and _is_grouped(block, node):
        return scaled_weights_rounded(op, inputs, view)
    if arithmetic.narrow_weights and isinstance(op, Attention):
        cache = block.value[node.inputs[1]].type.dtype
        return weights_rounded(op, inputs, view, BFLOAT16 in (op.dtype, cache))
    return None


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
    assert isinstance(op, CacheWrite)
    state, keys, cached, rows = inputs[:4]
    errors = keys.error, cached.error
    if op.scaled:
        scales = inputs[4].value
        errors = tuple(_narrowed(x, s) for x, s in zip((keys, cached), scales, strict=True))
    return CacheWrite().reference([state.error, *errors, rows.value], view)


def _narrowed(x: Bounded, scale: Any) -> Any:
    """How far off a stored float8 may be: rounding is monotone, so it lies between both ends."""
    import torch

    error = x.error / scale + 4 * U * (x.value / scale).abs()
    low, middle, high = (narrow(x.value / scale + sign * error) for sign in (-1, 0, 1))
    return torch.maximum(high - middle, middle - low)


def _is_scaled(block: Block, name: str) -> bool:
    """Whether rows are made here from a statistic of theirs, behind views and choices of rows."""
    while name in block.producer:
        node = block.nodes[block.producer[name]]
        if isinstance(node.op, Pointwise):
            makers = [block.nodes[block.producer[i]] for i in node.inputs if i in block.producer]
            narrow = block.value[name].type.dtype == BFLOAT16
            return narrow and any(isinstance(m.op, RowReduce) for m in makers)
        if not isinstance(node.op, View | SelectRows):
            return False
        name = node.inputs[0]
    return False


def _rounded_unscaled(rows: Bounded, weight: Bounded) -> Any:
    """What it may cost to round rows without their scale."""
    import torch

    x, w = rows.value, weight.value
    spread = 5 * NARROW * (x.square() @ w.square().T).sqrt()
    return torch.minimum(spread, 2 * NARROW * (x.abs() @ w.abs().T))


def _is_grouped(block: Block, node: Node) -> bool:
    """Whether bfloat16 rows meet a packed matrix whose scales do not wait for the sums."""
    x, kind = (block.value[name].type.dtype for name in node.inputs[:2])
    return x == BFLOAT16 and isinstance(kind, WeightFormat) and kind.group != WHOLE


def _rounded_weights(rows: Bounded, weight: Bounded) -> Any:
    """What it may cost to round each scaled weight once."""
    import torch

    x, w = rows.value, weight.value
    spread = 3.5 * NARROW * (x.square() @ w.square().T).sqrt()
    return torch.minimum(spread, NARROW * (x.abs() @ w.abs().T))


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
    Attention: attention_error,
    ChooseExperts: _none,
    MapExperts: _none,
    WeighExperts: weights_error,
    ExpertLinear: expert_product_error,
    SumExperts: expert_sum_error,
}


def _rule(op: Op) -> Rule:
    return _RULES.get(type(op), _unknown)
