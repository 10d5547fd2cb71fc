"""Owns which tiles of a space are measured: fast ones by the model, and not all of one kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kernelgen.tune.bundle import Pruned
from kernelgen.tune.spaces import Point, Space

EFFORTS: Mapping[str, int] = {"kept": 1, "quick": 6, "normal": 12, "full": 1 << 20}
"""tiles of a group that are measured; the one that builds use where it is but one"""
_SLOWEST = 1.6
"""times the fastest modelled tile: what is predicted to be slower is not measured unless all is"""
_KNOWN = 0.98
"""a tile whose code another size needs anyway counts as that much faster"""
_MAJOR: Mapping[str, tuple[str, ...]] = {
    "gemv": ("outputs", "depth"),
    "sliced": ("outputs", "depth", "warps"),
    "clustered": ("outputs", "cluster", "warps"),
    "ring": ("outputs", "depth", "cluster", "blocks"),
    "skinny": ("outputs", "splits", "warps"),
    "gemm": ("rows", "outputs", "warps"),
    "gemm_tma": ("rows", "outputs", "warps"),
    "packed": ("rows", "outputs", "warps"),
    "gemv_packed": ("outputs", "depth"),
    "attention_decode": ("splits", "tokens", "least", "cluster"),
    "attention_prefill": ("rows", "tokens", "warps"),
    "rows": ("rows", "warps"),
    "sample": ("parts", "columns"),
    "head_sample": ("core", "outputs", "warps"),
}
"""parameters that make tiles different in kind; the others are variations"""
_MAJOR_ELSEWHERE = ("rows", "outputs", "depth", "warps")
"""the same for families that are searched around the tile that they plan with"""


@dataclass(frozen=True)
class Selected:
    """A tile to measure, and what for."""

    point: Point
    why: str


def select(
    family: str,
    space: Space,
    effort: str,
    before: Mapping[str, int],
    known: Collection[str] = (),
) -> tuple[tuple[Selected, ...], tuple[Pruned, ...]]:
    """The tiles of a group, the model's best first, and why the rest is left out.

    `before` is what a build chooses today: it is always measured if it is legal. `known` holds
    texts of tiles that are compiled for another size.
    """
    count = EFFORTS[effort]
    found: dict[str, Selected] = {}

    def add(point: Point, why: str) -> None:
        if len(found) < count:
            found.setdefault(point.text, Selected(point, why))

    wanted = ((space.best, "model's best"), (before, "in use"))
    for choice, why in wanted[::-1] if count == 1 else wanted:
        for point in space.points:
            if point.choice == choice:
                add(point, why)
    slowest = space.points[0].rank_us * _SLOWEST if space.points else 0.0
    full = count > len(space.points)
    near = [p for p in space.points if full or p.rank_us <= slowest]
    ranked = sorted(near, key=lambda p: p.rank_us * (_KNOWN if p.text in known else 1.0))
    for point in ranked[: max(1, count // 3)]:
        add(point, "fast")
    for point in _one_of_a_kind(family, ranked):
        add(point, "diverse")
    for point in ranked:
        add(point, "fast")
    return tuple(found.values()), _pruned(space, near, found)


def _one_of_a_kind(family: str, ranked: list[Point]) -> list[Point]:
    """The fastest tile of each kind, fastest first."""
    kinds: dict[tuple[int, ...], Point] = {}
    major = _MAJOR.get(family, _MAJOR_ELSEWHERE)
    for point in ranked:
        kind = tuple(point.choice.get(name, 0) for name in major)
        kinds.setdefault(kind, point)
    return list(kinds.values())


def _pruned(space: Space, near: list[Point], taken: Collection[str]) -> tuple[Pruned, ...]:
    """Every tile that is not taken counts once for each limit that it exceeds, else once."""
    found = [Pruned(reason, n, example) for reason, (n, example) in space.illegal.items()]
    found.sort(key=lambda p: -p.tiles)
    left = [point for point in space.points if point.text not in taken]
    close = {point.text for point in near}
    rest = [point for point in left if point.text in close]
    far = [point for point in left if point.text not in close]
    for reason, points in (
        (f"modelled slower than {_SLOWEST} times the fastest", far),
        ("like a faster one that is measured", rest),
    ):
        if points:
            found.append(Pruned(reason, len(points), points[-1].text))
    return tuple(found)
