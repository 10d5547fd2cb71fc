"""Owns tile spaces: every tile of a family for one problem, with what the model says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from kernelgen.codegen.families import (
    triton_clustered,
    triton_decode,
    triton_packed,
    triton_prefill,
    triton_ring,
    triton_rows,
    triton_sample,
    triton_sliced,
)
from kernelgen.codegen.families.roles import HeadRoles
from kernelgen.codegen.families.triton import triton_families
from kernelgen.codegen.families.triton_choice import tile_choice, tile_text
from kernelgen.codegen.families.triton_family import Quote, TritonFamily
from kernelgen.codegen.families.triton_gemm import LEAST_ROWS, GemmTile
from kernelgen.codegen.families.triton_gemm_tma import TmaTile
from kernelgen.codegen.families.triton_gemv import GemvTile
from kernelgen.codegen.families.triton_head import HeadBest, HeadTile
from kernelgen.codegen.families.triton_packed import PackedGemvTile, PackedTile
from kernelgen.codegen.families.triton_product import product as product_of
from kernelgen.codegen.families.triton_ring import RingTile
from kernelgen.codegen.families.triton_rows import RowsTile
from kernelgen.codegen.families.triton_skinny import MOST_ROWS, SkinnyTile, padded_rows
from kernelgen.codegen.families.triton_sliced import SlicedTile
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Role
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Match, Refusal
from kernelgen.tables import Tables
from kernelgen.tune.contexts import elsewhere_us
from kernelgen.tune.neighbours import around


@dataclass(frozen=True)
class Point:
    """One legal tile: its choice as a row spells it, the modelled time, and its text for people."""

    choice: Mapping[str, int]
    us: float
    """with the boundary before it and all passes, as a price has it"""
    text: str
    rank_us: float
    """what tiles are compared by: all contexts that a plan serves, where that makes a difference"""


@dataclass(frozen=True)
class Space:
    """All tiles of one problem: legal ones fastest first, and why the others are not."""

    points: tuple[Point, ...]
    illegal: Mapping[str, tuple[int, str]]
    """reason → how many tiles, one of them"""
    looked_at: int
    best: Mapping[str, int]
    """what the family itself would choose"""


def _can_be_staged(match: Match) -> bool:
    """Whether what the kernel reads of a layer is keys and values, or nothing."""
    region = match.region
    states = [v for n in region.inputs if (v := region.value(n)).role is Role.STATE]
    pairs = all(len(value.type.shape) == 2 for value in states)
    return pairs and not region.with_trait(Trait.SCAN | Trait.LATENT)


def space_of(match: Match, sizes: Sizes, device: Device) -> Space | Refusal:
    """The whole space of a match at the sizes that it is priced at; or why it has none there."""
    family = match.family
    assert isinstance(family, TritonFamily)
    quote = family.quote(match.region, match.roles, sizes, device)
    if isinstance(quote, Refusal):
        return quote
    if not _can_be_staged(match):
        return Refusal("a sweep makes up keys and values alone of what layers keep between steps")
    if family.name not in _SPACES:
        return _around(match, quote, sizes, device)
    later = device.boundary_us + sum(p.us for p in quote.passes)
    illegal: dict[str, tuple[int, str]] = {}
    points: dict[str, Point] = {}
    looked_at = 0
    for tile, problem in _SPACES[family.name](match, quote, sizes, device):
        looked_at += 1
        text = tile_text(tile)
        problems = list(tile.problems(problem, device))
        if text in device.refused_tiles:
            problems.append("its compiled code exceeds a limit")
        for reason in problems:
            illegal[reason] = (illegal.get(reason, (0, ""))[0] + 1, text)
        if problems:
            continue
        timing = tile.time(problem, device)
        plain = not isinstance(tile, HeadTile)
        choice = tile_choice(tile) if plain else HeadBest(tile, timing, 0, 0).choice
        us = timing.us + later
        rank = us + elsewhere_us(tile, problem, device)
        points.setdefault(str(choice), Point(choice, us, text, rank))
    return Space(_ordered(points), illegal, looked_at, dict(quote.best.choice))


def _ordered(points: Mapping[str, Point]) -> tuple[Point, ...]:
    return tuple(sorted(points.values(), key=lambda p: (round(p.rank_us, 3), str(p.choice))))


def _around(match: Match, quote: Quote, sizes: Sizes, device: Device) -> Space:
    """The space of a family that has none of its own: what it accepts of its best tile's
    neighbours, asked as a row would ask.
    """
    family = match.family
    assert isinstance(family, TritonFamily)
    illegal: dict[str, tuple[int, str]] = {}
    points: dict[str, Point] = {}
    looked_at = 0
    for choice in around(quote.best.choice):
        looked_at += 1
        found = family.quote(match.region, match.roles, sizes, device, choice)
        text = ", ".join(f"{name} {value}" for name, value in choice.items())
        if isinstance(found, Refusal):
            for reason in str(found.reason).split("; "):
                illegal[reason] = (illegal.get(reason, (0, ""))[0] + 1, text)
        else:
            us = found.us(device)
            points[str(choice)] = Point(choice, us, tile_text(found.best.tile), us)
    return Space(_ordered(points), illegal, looked_at, dict(quote.best.choice))


def with_choice(
    space: Space, match: Match, sizes: Sizes, device: Device, choice: Mapping[str, int]
) -> Space:
    """The space with a tile that builds use today, where it is none of the space's own."""
    family = match.family
    assert isinstance(family, TritonFamily)
    if any(point.choice == choice for point in space.points):
        return space
    quote = family.quote(match.region, match.roles, sizes, device, choice)
    if isinstance(quote, Refusal):
        return space
    us, tile = quote.us(device), quote.best.tile
    rank = us + elsewhere_us(tile, quote.problem, device)
    return replace(space, points=(*space.points, Point(dict(choice), us, tile_text(tile), rank)))


Pairs = Iterator[tuple[Any, Any]]
"""tiles, each with the problem that it is judged by"""


Pairing = Callable[[Match, Quote, Sizes, Device], Pairs]


def _plain(space: Callable[[Quote, Device], Iterator[Any]]) -> Pairing:
    return lambda match, quote, sizes, device: (
        (tile, quote.problem) for tile in space(quote, device)
    )


def _gemv(device: Device) -> Iterator[GemvTile]:
    """Wider than what the family plans with: more outputs and warps a block, more blocks."""
    for depth, warps, outputs, each in product(
        (256, 512, 1024, 2048, 4096, 8192, 16384),
        (1, 2, 4, 8, 16),
        (1, 2, 4, 8, 16),
        (0, 1, 2, 3, 4, 6),
    ):
        yield GemvTile(outputs, depth, warps, each * device.units)


def _sliced(rows: int) -> Iterator[SlicedTile]:
    """Wider than what the family plans with: longer and shorter steps, more warps."""
    for outputs, depth, warps in product((16, 32, 64), (1024, 2048, 512, 4096, 256), (4, 8, 2, 16)):
        yield SlicedTile(triton_sliced.padded_rows(rows), outputs, depth, warps)


def _skinny(rows: int) -> Iterator[SkinnyTile]:
    """Wider than what the family plans with: splits of any number, narrow tiles, more in flight."""
    shapes = ((64, 4), (128, 4), (128, 8), (32, 4), (64, 8), (32, 8), (16, 4), (256, 8))
    for splits, (outputs, warps), depth, stages, ahead in product(
        (1, 2, 3, 4, 6, 8, 12, 16), shapes, (128, 64, 256), (4, 3, 5, 6, 8), (8, 0, 16)
    ):
        yield SkinnyTile(rows, outputs, depth, splits, stages, warps, ahead)


def _ring(rows: int, device: Device) -> Iterator[RingTile]:
    """Wider than what the family plans with: rings of any length, clusters that take turns."""
    padded = triton_ring.padded_rows(rows)
    for outputs, depth, cluster, stages, each in product(
        (64, 128), (128, 256, 64), (2, 4, 1, 8), (6, 4, 3, 2, 1, 5, 8, 11), (0, 1, 2)
    ):
        yield RingTile(padded, outputs, depth, stages, cluster, each * device.units // cluster)


def _gemm() -> Iterator[GemmTile]:
    """Wider than what the family plans with: narrow tiles, deeper steps."""
    for rows, outputs, depth, stages, warps in product(
        (128, 64, 256), (256, 128, 64, 32), (64, 32, 128), (4, 3, 2, 5, 6), (8, 4)
    ):
        yield GemmTile(rows, outputs, depth, stages, warps)


def _gemm_tma() -> Iterator[TmaTile]:
    """Wider than what the family plans with: more in flight, other orders of blocks."""
    for rows, outputs, stages, warps, bands in product(
        (128, 64, 256), (256, 128, 64), (4, 3, 2, 5, 6), (8, 4), (8, 4, 16)
    ):
        yield TmaTile(rows, outputs, 64, stages, warps, bands)


def _packed(rows: int) -> Iterator[PackedTile]:
    """Wider than what the family plans with: bands of any height, longer steps, more in flight."""
    most = triton_packed.padded_rows(rows)
    heights = [high for high in (16, 32, 64, 128) if high <= most]
    for high, outputs, depth, stages, warps in product(
        heights[::-1], (64, 32, 16, 128, 256), (128, 64, 256, 512), (3, 2, 4, 5, 1), (4, 8, 2)
    ):
        yield PackedTile(high, outputs, depth, stages, warps)


def _gemv_packed() -> Iterator[PackedGemvTile]:
    """Wider than what the family plans with: longer and shorter steps, more warps and outputs."""
    for depth, warps, outputs in product(
        (4096, 2048, 1024, 512, 8192, 256, 16384), (4, 2, 8, 1, 16), (4, 8, 2, 1, 16, 32)
    ):
        yield PackedGemvTile(outputs, depth, warps)


def _rows(width: int) -> Iterator[RowsTile]:
    """The family's own tiles, and more warps for a row."""
    yield from triton_rows.space(width)
    for tile in triton_rows.space(width):
        if tile.warps == 8:
            yield replace(tile, warps=16)


def _head(match: Match, quote: Quote, sizes: Sizes, device: Device) -> Pairs:
    """The tiles of all product families that take so many rows; partial sums are no candidates."""
    roles = match.roles
    assert isinstance(roles, HeadRoles)
    tile, problem = quote.best.tile, quote.problem
    assert isinstance(tile, HeadTile)
    usual = max(LEAST_ROWS, product_of(match.region, roles.linear, sizes).rows)
    asked = replace(problem, rows=min(usual, problem.rows))
    if problem.rows == 1:
        yield from ((HeadTile(0, inner, tile.choose), problem) for inner in _gemv(device))
    if problem.rows <= MOST_ROWS:
        for inner in _skinny(padded_rows(problem.rows)):
            if inner.splits == 1:
                yield HeadTile(1, inner, tile.choose), problem
    if problem.rows >= LEAST_ROWS:
        yield from ((HeadTile(2, inner, tile.choose), asked) for inner in _gemm())


_SPACES: Mapping[str, Pairing] = {
    # Families that are not here are searched around the tile that they plan with.
    "gemv": _plain(lambda quote, device: _gemv(device)),
    "sliced": _plain(
        lambda quote, _: triton_sliced.space(triton_sliced.padded_rows(quote.problem.rows))
    ),
    "clustered": _plain(
        lambda quote, _: triton_clustered.space(triton_sliced.padded_rows(quote.problem.rows))
    ),
    "ring": _plain(lambda quote, device: _ring(quote.problem.rows, device)),
    "skinny": _plain(lambda quote, _: _skinny(padded_rows(quote.problem.rows))),
    "gemm": _plain(lambda quote, _: _gemm()),
    "gemm_tma": _plain(lambda quote, _: _gemm_tma()),
    "packed": _plain(lambda quote, _: _packed(quote.problem.rows)),
    "gemv_packed": _plain(lambda quote, _: _gemv_packed()),
    "attention_decode": _plain(lambda quote, _: iter(triton_decode.space())),
    "attention_prefill": _plain(lambda quote, _: iter(triton_prefill.space())),
    "rows": _plain(lambda quote, _: _rows(quote.problem.width)),
    "sample": _plain(lambda quote, _: iter(triton_sample.space())),
    "head_sample": _head,
}


def families() -> tuple[str, ...]:
    """Names of the families that can be tuned: all that a build can choose."""
    return tuple(family.name for family in triton_families(Tables(Path())))
