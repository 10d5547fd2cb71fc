"""Owns the workspace: places for buffers so that those alive at one time do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # one cache line, one AVX-512 register


@dataclass(frozen=True)
class Lifetime:
    """A buffer from the launch that writes it first to the launch that reads it last, both included."""

    name: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Layout:
    """Offsets by buffer name, and the bytes of the whole workspace."""

    offsets: dict[str, int]
    bytes: int


def place(buffers: Sequence[Lifetime]) -> Layout:
    """Greedy by size: each buffer goes to the lowest gap among those it overlaps in time."""
    placed: list[tuple[int, int, Lifetime]] = []
    offsets: dict[str, int] = {}
    for buffer in sorted(buffers, key=lambda b: (-b.bytes, b.first, b.name)):
        size = _aligned(buffer.bytes)
        at = 0
        for start, end, other in placed:  # kept sorted by start
            if other.last < buffer.first or buffer.last < other.first:
                continue
            if at + size <= start:
                break
            at = max(at, end)
        offsets[buffer.name] = at
        placed.append((at, at + size, buffer))
        placed.sort(key=lambda p: (p[0], p[1]))
    return Layout(offsets, max((end for _, end, _ in placed), default=0))


def _aligned(size: int) -> int:
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
