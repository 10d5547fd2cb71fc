"""Owns the row reduction: one float32 number from an expression over each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import FLOAT32
from kernelgen.ir.expr import Expr
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class RowReduce(Op):
    """`out[…, 0] = mean | sum | max over i of expr(in0[…, i], …)`, kept in float32."""

    how: str
    expr: Expr
    kind: ClassVar[str] = "row_reduce"
    traits: ClassVar[Trait] = Trait.ROW_REDUCE

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """Last axis becomes 1; raises ValueError for an unknown reduction."""
        if self.how not in ("mean", "sum", "max"):
            raise ValueError(f"row_reduce: {self.how!r} is not one of mean, sum, max")
        return (Type((*inputs[0].shape[:-1], 1), FLOAT32),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Expression and one accumulation for each element."""
        return (self.expr.flops + 1) * inputs[0].elements(sizes)

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """The reduction in the precision of the inputs."""
        x = self.expr.evaluate(inputs).expand(inputs[0].shape)
        if self.how == "max":
            return (x.amax(-1, keepdim=True),)
        return (x.mean(-1, keepdim=True) if self.how == "mean" else x.sum(-1, keepdim=True),)

    def attributes(self) -> str:
        """Reduction and expression."""
        return f"{self.how} {self.expr}"
