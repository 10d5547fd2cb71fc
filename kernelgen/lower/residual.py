"""Owns the residual addition with its multiplier."""

from __future__ import annotations

from kernelgen.ir.expr import arg
from kernelgen.lower.scope import Scope
from kernelgen.ops import Pointwise


def add_residual(scope: Scope, name: str, x: str, *branches: str, multiplier: float = 1.0) -> str:
    """`x + multiplier · (branch + …)`, in the dtype of the stream."""
    total = arg(1)
    for i in range(1, len(branches)):
        total = total + arg(i + 1)
    expr = arg(0) + (total if multiplier == 1.0 else total * multiplier)
    return scope.apply(name, Pointwise(expr, scope.numerics.stream), x, *branches)
