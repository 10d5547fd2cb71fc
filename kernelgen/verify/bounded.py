"""Owns values with error bounds: the unit of each rounding, and bounds of scalar expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from kernelgen.ir.expr import FUNCTIONS, Expr
from kernelgen.ops.step import DenseCache

U = 2.0**-24
LIBRARY = 8 * U
TINY = 1e-36
"""what flushing denormals may cost"""
NARROW = 2.0**-8
"""relative to a value, what rounding it to bfloat16 may cost"""


@dataclass
class Bounded:
    """A value and, element for element, how far off a kernel may be (for a cache, two caches)."""

    value: Any
    error: Any


@dataclass(frozen=True)
class Arithmetic:
    """Where the kernels of a target may round otherwise than their ops say.

    `scales_products`: a row statistic may scale the finished product instead of the rows, so that
    the rows are rounded without it. `narrow_weights`: weights of a softmax may be rounded to the
    cache's dtype before they meet the values, and scaled weights of a packed matrix to bfloat16.
    """

    scales_products: bool = False
    narrow_weights: bool = False


AS_WRITTEN = Arithmetic()
TENSOR_CORES = Arithmetic(scales_products=True, narrow_weights=True)


def summed(count: int) -> float:
    """Relative to Σ|terms|, what a float32 sum of `count` products may be off."""
    return U * (8 + 2 * sqrt(count))


def exact(value: Any) -> Bounded:
    """A value that nothing is wrong with."""
    import torch

    if isinstance(value, DenseCache):
        zeros = [[torch.zeros_like(x) for x in side] for side in (value.keys, value.values)]
        return Bounded(value, DenseCache(*zeros))
    return Bounded(value, torch.zeros_like(value))


def rounded(value: Any, error: Any) -> Bounded:
    """The value as bfloat16 stores it: a bound that crosses no rounding boundary becomes 0."""
    import torch

    def narrow(x: Any) -> Any:
        # Twice rounded (float32 first) is what a kernel does too; both steps are monotone.
        return x.float().to(torch.bfloat16).double()

    middle = narrow(value)
    wide = torch.maximum(narrow(value + error) - middle, middle - narrow(value - error))
    return Bounded(middle, wide)


def bounded_expression(expr: Expr, inputs: Sequence[Bounded]) -> Bounded:
    """The expression's value and error, from the leaves up."""
    import torch

    if expr.fn == "arg":
        return inputs[expr.index]
    if expr.fn == "const":
        value = torch.tensor(expr.value, dtype=torch.float64)
        return Bounded(value, U * value.abs())
    args = [bounded_expression(a, inputs) for a in expr.args]
    value = FUNCTIONS[expr.fn].meaning(*(a.value for a in args))
    return Bounded(value, _moved_by(expr.fn, args, value) + TINY)


def _moved_by(fn: str, args: Sequence[Bounded], value: Any) -> Any:
    """What errors of the arguments, and of the function itself, make of the result."""
    import torch

    first = args[0]
    if fn in ("add", "sub"):
        return first.error + args[1].error + U * value.abs()
    if fn == "mul":
        other = args[1]
        left, right = first.value.abs() * other.error, other.value.abs() * first.error
        return left + right + first.error * other.error + U * value.abs()
    if fn == "div":
        other = args[1]
        least = (other.value.abs() - other.error).clamp(min=0)
        # A GPU's quotient is within two units in the last place.
        return (first.error + value.abs() * other.error) / least + 4 * U * value.abs()
    if fn in ("max", "min"):
        return torch.maximum(first.error, args[1].error)
    if fn == "neg":
        return first.error
    ends = [FUNCTIONS[fn].meaning(first.value + s * first.error) - value for s in (-1, 1)]
    moved = torch.maximum(ends[0].abs(), ends[1].abs()).nan_to_num(nan=float("inf"))
    return 1.01 * moved + LIBRARY * value.abs()
