"""Owns the workspace: places for buffers so that those alive at one time do not overlap."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # one cache line, one AVX-512 register


@dataclass(frozen=True)
class Lifetime:
    """A buffer from the launch that writes it first to the launch that reads it last, both
    included.
    """

    name: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Layout:
    """Offsets by buffer name, and the bytes of the whole workspace."""

    offsets: dict[str, int]
    bytes: int


def place(buffers: Sequence[Lifetime], fixed: Sequence[tuple[int, Lifetime]] = ()) -> Layout:
    """Greedy by size: each buffer goes to the lowest gap among those it overlaps in time.

    `fixed` are (offset, buffer) that have their place already; `offsets` does not repeat them.
    """
    taken = sorted((at, at + aligned(b.bytes), b.first, b.last) for at, b in fixed)
    offsets: dict[str, int] = {}
    for buffer in sorted(buffers, key=lambda b: (-b.bytes, b.first, b.name)):
        size, at = aligned(buffer.bytes), 0
        for start, end, first, last in taken:
            if last < buffer.first or buffer.last < first:
                continue
            if at + size <= start:
                break
            at = max(at, end)
        offsets[buffer.name] = at
        insort(taken, (at, at + size, buffer.first, buffer.last))
    return Layout(offsets, max((end for _, end, _, _ in taken), default=0))


def aligned(size: int) -> int:
    """`size` in whole cache lines, at least one."""
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
