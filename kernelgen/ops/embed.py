"""Owns the embedding look-up: one row of a table for each token id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import DType
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class Embed(Op):
    """`out[t] = table[ids[t]]` as `dtype`; an id outside the table gives a row of zeros."""

    dtype: DType
    kind: ClassVar[str] = "embed"
    traits: ClassVar[Trait] = Trait.GATHER

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """Inputs are ids `[T]` and the table `[vocabulary, hidden]`."""
        ids, table = inputs
        if len(ids.shape) != 1 or len(table.shape) != 2 or table.leading:
            raise ValueError(f"embed: ids {ids} and table {table} must have one and two dims")
        return (Type((ids.shape[0], table.shape[1]), self.dtype),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """It only moves bytes."""
        return 0

    def read_bytes(self, index: int, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Of the table only the chosen rows."""
        if index == 0:
            return inputs[0].size_bytes(sizes)
        return inputs[0].elements(sizes) * inputs[1].row_width * inputs[1].dtype.bits // 8

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """Row look-up; padding ids give zeros."""
        import torch

        ids, table = inputs
        inside = (ids >= 0) & (ids < table.shape[0])
        rows = table[ids.clamp(0, table.shape[0] - 1)]
        return (torch.where(inside[:, None], rows, torch.zeros_like(rows)),)
