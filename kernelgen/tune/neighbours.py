"""Owns the space of a family that declares none here: tiles around the one that it plans with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

_REACH = 2
"""doublings or steps of one knob"""
_FAR = 4
"""the same of all knobs of a tile together"""
_COUNTED = frozenset({"stages", "splits", "blocks", "bands", "ahead", "least"})
"""knobs that go up by one; the others are sides of blocks and warps, which double"""


def around(choice: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """The choice itself, then every one that lies few doublings or steps away from it."""
    names = list(choice)
    moves = product(range(-_REACH, _REACH + 1), repeat=len(names))
    for move in sorted(moves, key=lambda m: (sum(map(abs, m)), m)):
        if sum(map(abs, move)) > _FAR:
            break
        found = {n: _moved(n, choice[n], by) for n, by in zip(names, move, strict=True)}
        if None not in found.values():
            yield {n: v for n, v in found.items() if v is not None}


def _moved(name: str, value: int, by: int) -> int | None:
    """The knob so many doublings or steps away; None where there is no such number."""
    if not by:
        return value
    if name.rpartition("_")[2] in _COUNTED:
        return value + by if value + by > 0 else None
    if by > 0:
        return value << by if value else None
    return value >> -by if value and value % (1 << -by) == 0 and value >> -by else None
