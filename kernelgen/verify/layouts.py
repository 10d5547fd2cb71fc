"""Owns the checker's own packers of weights and cache pages, written from docs/abi.md alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from kernelgen.core.dtypes import BFLOAT16, DType
from kernelgen.verify.tensors import Tensor

PANEL = 32
PAGE_TOKENS = 16
LINE_BYTES = 64


def pack_panel(matrix: Tensor) -> Tensor:
    """`[N, K]` → `[N/32, K/2, 32, 2]` (bfloat16) or `[N/32, K, 32]`, padded with zeros."""
    import torch

    n, k = matrix.shape
    panels, even = -(-n // PANEL), k + k % 2
    padded = torch.zeros(panels * PANEL, even, dtype=matrix.dtype)
    padded[:n, :k] = matrix
    if matrix.dtype == torch.bfloat16:
        return padded.view(panels, PANEL, even // 2, 2).permute(0, 2, 1, 3).contiguous()
    return padded.view(panels, PANEL, even).permute(0, 2, 1).contiguous()


def unpack_panel(packed: Tensor, n: int, k: int) -> Tensor:
    """The inverse of `pack_panel`: what was padded is dropped."""
    rows = packed.permute(0, 2, 1, 3) if packed.ndim == 4 else packed.permute(0, 2, 1)
    return rows.reshape(packed.shape[0] * PANEL, -1)[:n, :k].contiguous()


def laid_out(matrix: Tensor, layout: str) -> Tensor:
    """A weight as its kernel is given it; an unknown layout is a KeyError. Of a stack every matrix
    is laid out by itself."""
    import torch

    if matrix.ndim == 3 and layout != "rows":
        return torch.cat([_LAYOUTS[layout](one) for one in matrix])
    return _LAYOUTS[layout](matrix)


_LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda matrix: matrix.contiguous(),
    "panel": pack_panel,
}


@dataclass(frozen=True)
class PagePart:
    """One layer's part of every page: keys and values of 16 tokens from byte `offset` on.

    `by_token`: each token's keys and values lie together, as on a GPU.
    """

    kv_heads: int
    head_dim: int
    dtype: DType
    offset: int
    by_token: bool = False

    @property
    def bytes(self) -> int:
        """Keys and values, without the padding to whole cache lines."""
        return 2 * PAGE_TOKENS * self.kv_heads * self.head_dim * self.dtype.bytes

    @property
    def stride(self) -> int:
        """Bytes from one layer's place to the next."""
        return -(-self.bytes // LINE_BYTES) * LINE_BYTES

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Element numbers, from the page's start, of keys and of values: `[16, kv_heads, D]`."""
        import torch

        t = torch.arange(PAGE_TOKENS)[:, None, None]
        h = torch.arange(self.kv_heads)[None, :, None]
        d = torch.arange(self.head_dim)[None, None, :]
        start = self.offset // self.dtype.bytes
        values_start = start + PAGE_TOKENS * self.kv_heads * self.head_dim
        if self.by_token:
            keys = values = (h * PAGE_TOKENS + t) * self.head_dim + d
        elif self.dtype == BFLOAT16:
            keys = ((h * (self.head_dim // 2) + d // 2) * PAGE_TOKENS + t) * 2 + d % 2
            values = ((h * (PAGE_TOKENS // 2) + t // 2) * self.head_dim + d) * 2 + t % 2
        else:
            keys = (h * self.head_dim + d) * PAGE_TOKENS + t
            values = (h * PAGE_TOKENS + t) * self.head_dim + d
        return start + keys, values_start + values

    def write(self, pool: Tensor, pages: Tensor, at: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores tokens: `pages`, `at` (0 … 15) are `[n]`, keys and values `[n, kv_heads, D]`."""
        elements, rows = self._elements(pool), pages[:, None, None]
        for places, what in zip(self.places, (keys, values), strict=True):
            elements[rows, places[at]] = what.to(elements.dtype)

    def read(self, pool: Tensor, pages: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens, the inverse of `write`."""
        elements, rows = self._elements(pool), pages[:, None, None]
        keys, values = (elements[rows, places[at]] for places in self.places)
        return keys, values

    def _elements(self, pool: Tensor) -> Tensor:
        import torch

        return pool.view(getattr(torch, self.dtype.torch))
