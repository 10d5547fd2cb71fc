"""Owns the choice of a tile: the fastest legal one, or every reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Generic, Protocol, TypeVar

from kernelgen.codegen.families.triton_block import Footprint
from kernelgen.codegen.families.triton_time import Timing
from kernelgen.hw.device import Device
from kernelgen.planner.family import Refusal

Problem = TypeVar("Problem", contravariant=True)

_POWERS = frozenset({"rows", "outputs", "depth", "width", "tokens", "columns", "warps"})
"""sides of blocks of values, and warps: powers of two"""
_MAY_BE_ZERO = frozenset({"ahead", "blocks", "pairs"})


class Wasteful(str):
    """A reason to leave a tile out that is a belief and not a limit: a measurement overrules it."""


class OtherFields(str):
    """Why a choice is none of today's tiles: it was made for another version of the kernel."""


class Tile(Protocol[Problem]):
    """One point of a family's tile space: a frozen dataclass of integers."""

    def footprint(self, problem: Problem) -> Footprint:
        """What a block takes."""

    def problems(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """Every reason why the tile is illegal here; empty when it is legal."""

    def time(self, problem: Problem, device: Device) -> Timing:
        """Modelled time without the boundary; only for legal tiles."""

    def masks(self, problem: Problem) -> tuple[str, ...]:
        """Sizes that do not divide, and what is masked for them."""


@dataclass(frozen=True)
class Best(Generic[Problem]):
    """The fastest legal tile of a space."""

    tile: Tile[Problem]
    timing: Timing
    legal: int
    looked_at: int

    @property
    def choice(self) -> Mapping[str, int]:
        """The tile as a table row spells it."""
        return tile_choice(self.tile)


def best(
    space: Iterable[Tile[Problem]],
    problem: Problem,
    device: Device,
    besides: Callable[[Tile[Problem]], float] = lambda tile: 0.0,
) -> Best[Problem] | Refusal:
    """The tile with the lowest time, `besides` (further launches that it asks for) included; of
    equals the one with most loads in flight, then with the lowest next limit.
    """
    found: tuple[tuple[float, ...], Tile[Problem], Timing] | None = None
    reasons: dict[str, list[Tile[Problem]]] = {}
    legal = looked_at = 0
    for tile in space:
        looked_at += 1
        problems = tile.problems(problem, device)
        if device.refused_tiles and tile_text(tile) in device.refused_tiles:
            problems = (*problems, "its compiled code exceeds a limit")
        for reason in problems:
            reasons.setdefault(reason, []).append(tile)
        if problems:
            continue
        legal += 1
        timing = tile.time(problem, device)
        us = timing.us + besides(tile)
        rank = (round(us, 2), round(timing.latency_us, 2), *(part for _, part in timing.hidden))
        if found is None or rank < found[0]:
            found = (rank, tile, timing)
    if found is None:
        return Refusal(_why_none(reasons))
    return Best(found[1], found[2], legal, looked_at)


def given(
    kind: type[Tile[Problem]], choice: Mapping[str, int], problem: Problem, device: Device
) -> Best[Problem] | Refusal:
    """The tile that a table chose, or why it cannot be used for this problem."""
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    if sorted(choice) != sorted(names):
        told = f"a tile has {', '.join(names)}, not {', '.join(choice)}"
        return Refusal(OtherFields(told))
    return checked(kind(**choice), problem, device)


def checked(tile: Tile[Problem], problem: Problem, device: Device) -> Best[Problem] | Refusal:
    """A tile with its time, or every limit that makes it illegal; beliefs do not count."""
    for name, value in tile_choice(tile).items():
        if value < (name not in _MAY_BE_ZERO) or (name in _POWERS and value & (value - 1)):
            return Refusal(f"{name} cannot be {value}")
    problems = [p for p in tile.problems(problem, device) if not isinstance(p, Wasteful)]
    if tile_text(tile) in device.refused_tiles:
        problems.append("its compiled code exceeds a limit")
    if problems:
        return Refusal("; ".join(problems))
    return Best(tile, tile.time(problem, device), 1, 1)


def _why_none(reasons: Mapping[str, list[Tile[Problem]]]) -> str:
    """Reasons that hold for most tiles first, each with one tile that it excludes."""
    ordered = sorted(reasons.items(), key=lambda item: -len(item[1]))
    told = [f"{reason} (e.g. {tile_text(tiles[0])})" for reason, tiles in ordered[:3]]
    return f"no tile is legal: {'; '.join(told)}"


def tile_choice(tile: object) -> dict[str, int]:
    """Field names to numbers."""
    found: dict[str, Any] = asdict(tile)  # type: ignore[call-overload]
    return found


def tile_text(tile: object) -> str:
    """`outputs 2, depth 2048, warps 4`"""
    named = fields(tile)  # type: ignore[arg-type]
    return ", ".join(f"{f.name} {getattr(tile, f.name)}" for f in named)


def masked(what: str, size: int, step: int) -> tuple[str, ...]:
    """The note for a size that its step does not divide; empty when it does."""
    rest = size % step
    if not rest:
        return ()
    whole = f"{size // step} × {step} + " if size > step else ""
    return (f"masked {what}: {size} = {whole}{rest} of {step}",)
