"""Owns views: a part of each row seen with another shape. Never a kernel, always index
arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class View(Op):
    """Elements `offset … offset + prod(row)` of each flattened row, seen as `row`: reshape and
    split in one."""

    row: tuple[int, ...]
    offset: int = 0
    kind: ClassVar[str] = "view"
    traits: ClassVar[Trait] = Trait.VIEW

    @property
    def width(self) -> int:
        """Elements of one row of the view."""
        count = 1
        for dim in self.row:
            count *= dim
        return count

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """Raises ValueError when the part does not lie inside the row."""
        x = inputs[0]
        if x.leading is None or self.offset < 0 or self.offset + self.width > x.static_elements:
            raise ValueError(f"view: {self.offset}+{self.width} elements do not lie inside {x}")
        return (Type((x.leading, *self.row), x.dtype),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Nothing is computed."""
        return 0

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """Slice and reshape."""
        x = inputs[0].reshape(inputs[0].shape[0], -1)
        return (x[:, self.offset : self.offset + self.width].reshape(x.shape[0], *self.row),)
