"""Owns the projection with its optional bias."""

from __future__ import annotations

from kernelgen.core.dtypes import FLOAT32, DType
from kernelgen.ir.expr import arg
from kernelgen.lower.scope import Scope
from kernelgen.ops import Linear, Pointwise


def linear(
    scope: Scope, name: str, x: str, outputs: int, *, bias: bool = False, dtype: DType = FLOAT32
) -> str:
    """`x · weightᵀ (+ bias)` as `[rows, outputs]` of `dtype`; with a bias only the sum is rounded.

    Float32 is the default, since what follows is pointwise and rounds by itself.
    """
    weight = scope.matrix(f"{name}.weight", outputs, scope.width(x))
    if not bias:
        return scope.apply(name, Linear(dtype), x, weight)
    product = scope.apply(name, Linear(FLOAT32), x, weight)
    vector = scope.vector(f"{name}.bias", outputs)
    add = Pointwise(arg(0) + arg(1), dtype)
    return scope.apply(f"{name}.add_bias", add, product, vector)
