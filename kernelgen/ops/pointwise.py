"""Owns the pointwise op: one scalar expression applied to matching elements of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import DType
from kernelgen.ir.expr import Expr
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class Pointwise(Op):
    """`out[…, i] = expr(in0[…, i], in1[i], in2[…, 0], …)`.

    The first input gives the shape. Others have that shape, or are one row (`[width]`), or one
    number a row (`[…, 1]`).
    Computed in float32 and rounded once to `dtype`.
    """

    expr: Expr
    dtype: DType
    kind: ClassVar[str] = "pointwise"
    traits: ClassVar[Trait] = Trait.POINTWISE

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """The first input's shape; raises ValueError when another does not broadcast to it."""
        shape = inputs[0].shape
        for t in inputs[1:]:
            if t.shape not in (shape, shape[-1:], (*shape[:-1], 1)):
                raise ValueError(f"pointwise: {t} does not broadcast to {inputs[0]}")
        return (Type(shape, self.dtype),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Cost of the expression for every element."""
        return self.expr.flops * inputs[0].elements(sizes)

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """The expression in the precision of the inputs."""
        return (self.expr.evaluate(inputs).expand(inputs[0].shape),)

    def attributes(self) -> str:
        """The expression itself."""
        return str(self.expr)
