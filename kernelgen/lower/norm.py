"""Owns the root-mean-square norm: a row statistic and a pointwise op."""

from __future__ import annotations

from kernelgen.ir.expr import arg, call
from kernelgen.lower.scope import Scope
from kernelgen.ops import Pointwise, RowReduce


def rms_norm(scope: Scope, name: str, x: str, eps: float) -> str:
    """`x · rsqrt(mean(x²) + eps) · weight` over the last axis, in float32, rounded once.

    The reference frameworks round before the weight as well; one rounding is closer to the
    formula and lets the weight travel with the statistic.
    """
    a, stat, weight = arg(0), arg(1), arg(2)
    mean = scope.apply(f"{name}.stat", RowReduce("mean", a * a), x)
    expr = a * call("rsqrt", stat + eps) * weight
    vector = scope.vector(f"{name}.weight", scope.width(x))
    return scope.apply(name, Pointwise(expr, scope.numerics.activation), x, mean, vector)
