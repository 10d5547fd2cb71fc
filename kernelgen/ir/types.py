"""Owns shapes: symbolic dims, value types, and the sizes that a plan substitutes for them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kernelgen.core.dtypes import DType


class Dim(Enum):
    """The only symbolic sizes; everything else is a constant inside the kernel text."""

    T = "T"
    """token rows of the step"""
    B = "B"
    """rows whose logits are asked: one a request, more when prompt logits are wanted"""

    def __str__(self) -> str:
        return self.value


Shape = tuple[int | Dim, ...]


@dataclass(frozen=True)
class Sizes:
    """What the symbolic sizes are worth in one plan."""

    tokens: int
    """T"""
    rows: int
    """B, and the number of requests of the step"""
    context: int
    """N: cache entries that each request reads, the newest token included"""
    row_capacity: int = 0
    """most logit rows that one step may ask for; 0 means `rows`"""

    @property
    def capacity(self) -> Sizes:
        """The sizes that buffers have to hold, where `rows` is what a step usually asks."""
        return Sizes(self.tokens, max(self.rows, self.row_capacity), self.context)

    def of(self, dim: int | Dim) -> int:
        """The number behind one dim."""
        if isinstance(dim, Dim):
            return self.tokens if dim is Dim.T else self.rows
        return dim


@dataclass(frozen=True)
class Type:
    """Shape and dtype of a value. The last axis is the row that row-wise ops work on."""

    shape: Shape
    dtype: DType

    @property
    def row_width(self) -> int:
        """Length of the last axis; 1 for a scalar or a purely symbolic shape."""
        last = self.shape[-1] if self.shape else 1
        return last if isinstance(last, int) else 1

    @property
    def static_elements(self) -> int:
        """Product of the constant dims: elements for each unit of the symbolic ones."""
        count = 1
        for dim in self.shape:
            count *= dim if isinstance(dim, int) else 1
        return count

    @property
    def leading(self) -> Dim | None:
        """The symbolic first dim, or None for a parameter."""
        first = self.shape[0] if self.shape else None
        return first if isinstance(first, Dim) else None

    def elements(self, sizes: Sizes) -> int:
        """Number of elements once the dims are known."""
        count = 1
        for dim in self.shape:
            count *= sizes.of(dim)
        return count

    def size_bytes(self, sizes: Sizes) -> int:
        """Bytes once the dims are known."""
        return self.dtype.size_bytes(self.elements(sizes))

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(str(d) for d in self.shape)}]"
