"""Owns rotary embedding: pairs (i, i + D/2) of each head rotated by position × frequency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import DType
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class Rope(Op):
    """Half-split ("neox") rotation of the first `2·R` of D elements; the rest passes through.

    Inputs: `x [T, heads, D]`, `table [P, 2, R]` (cos, sin for each position), `positions [T]`.
    With a = x[i], b = x[i + R]: `out[i] = a·cos − b·sin`, `out[i + R] = b·cos + a·sin`, in float32,
    rounded once.
    """

    dtype: DType
    kind: ClassVar[str] = "rope"
    traits: ClassVar[Trait] = Trait.ROW_MAP

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """The shape of x; raises ValueError when the table rotates more than a head holds."""
        x, table, _positions = inputs
        if len(x.shape) != 3 or len(table.shape) != 3 or 2 * table.row_width > x.row_width:
            raise ValueError(f"rope: table {table} does not fit {x}")
        return (Type(x.shape, self.dtype),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Three for each element."""
        return 3 * inputs[0].elements(sizes)

    def read_bytes(self, index: int, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Of the table one row a token."""
        if index != 1:
            return inputs[index].size_bytes(sizes)
        return inputs[2].elements(sizes) * 2 * inputs[1].row_width * 4

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """The rotation with the table's own cosines and sines."""
        import torch

        x, table, positions = inputs
        rotated = table.shape[-1]
        cos, sin = (table[positions, i].to(x.dtype)[:, None, :] for i in (0, 1))
        a, b = x[..., :rotated], x[..., rotated : 2 * rotated]
        parts = (a * cos - b * sin, b * cos + a * sin, x[..., 2 * rotated :])
        return (torch.cat(parts, dim=-1),)
