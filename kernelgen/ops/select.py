"""Owns row selection: the token rows whose logits are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class SelectRows(Op):
    """`out[b] = x[index[b]]`."""

    kind: ClassVar[str] = "select_rows"
    traits: ClassVar[Trait] = Trait.SELECT

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """Inputs are `x [T, width]` and the indices `[B]`."""
        x, index = inputs
        return (Type((index.shape[0], *x.shape[1:]), x.dtype),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """It only moves bytes."""
        return 0

    def read_bytes(self, index: int, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Only the selected rows."""
        if index == 1:
            return inputs[1].size_bytes(sizes)
        rows = inputs[1].elements(sizes)
        return rows * inputs[0].static_elements * inputs[0].dtype.bits // 8

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """Plain indexing."""
        return (inputs[0][inputs[1]],)
