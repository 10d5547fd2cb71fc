"""Owns what the launches of a block are given, wherever it is placed: operands and places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelgen.ir.graph import Role
from kernelgen.ir.types import Sizes
from kernelgen.planner.memory import Lifetime, place
from kernelgen.planner.network import Region
from kernelgen.planner.plan import COUNTERS, SCRATCH, Kernel, Operand
from kernelgen.planner.search import Solution


@dataclass(frozen=True)
class Seat:
    """A fixed place of the workspace that holds a stream between blocks."""

    at: int
    bytes: int


@dataclass(frozen=True)
class Surroundings:
    """What a placement finds and what it has to leave behind. Equal ones are wired once."""

    block: int
    inputs: tuple[tuple[str, Seat], ...]
    """stream that the block reads → where it lies"""
    outputs: tuple[tuple[str, Seat], ...]
    """value that later blocks read → where it has to go"""
    bound: tuple[tuple[str, str], ...]
    """value → buffer of the runtime that it has to go to"""
    kept: tuple[Seat, ...]
    """seats whose contents must survive the block"""


@dataclass(frozen=True)
class Wiring:
    """Operands of each launch of a block, and the workspace up to the last byte that it touches."""

    launches: tuple[tuple[Operand, ...], ...]
    workspace_bytes: int


def wire(
    around: Surroundings, solution: Solution, kernels: tuple[Kernel, ...], sizes: Sizes
) -> Wiring:
    """Name every operand, then give each buffer of the block a place free while it lives."""
    seats, bound = dict(around.inputs) | dict(around.outputs), dict(around.bound)
    drafts: list[tuple[Operand, ...]] = []
    lives: dict[str, Lifetime] = {}
    for now, (kernel, cut) in enumerate(zip(kernels, solution.cuts, strict=True)):
        operands = []
        for name in kernel.signature:
            operand = _operand(name, now, cut.match.region, bound)
            if operand.kind == "buffer":
                size = cut.price.scratch_bytes
                if name != SCRATCH:
                    size = cut.match.region.value(name).type.size_bytes(sizes.capacity)
                known = lives.get(operand.name)
                first = known.first if known else now
                lives[operand.name] = Lifetime(operand.name, size, first, now)
            operands.append(operand)
        drafts.append(tuple(operands))
    fixed = _fixed(around, lives, len(drafts) - 1)
    layout = place([life for name, life in lives.items() if name not in seats], fixed)
    offsets = layout.offsets | {name: seat.at for name, seat in seats.items()}
    return Wiring(tuple(tuple(_placed(o, offsets) for o in d) for d in drafts), layout.bytes)


def _operand(name: str, now: int, region: Region, bound: Mapping[str, str]) -> Operand:
    """One entry of a signature; buffers are known by their value's name, scratch by its launch."""
    if name == SCRATCH:
        return Operand("buffer", f"{SCRATCH}.{now}")
    if name == COUNTERS:
        return Operand("bound", COUNTERS)
    if name in bound:
        return Operand("bound", bound[name])
    role = region.value(name).role
    if role is Role.STATE:
        return Operand("state", "cache", number=region.network.block.kept_as(name))
    kinds = {Role.WEIGHT: "weight", Role.TABLE: "table", Role.STEP: "step"}
    return Operand(kinds.get(role, "buffer"), name)


def _fixed(
    around: Surroundings, lives: Mapping[str, Lifetime], last: int
) -> list[tuple[int, Lifetime]]:
    """Seats as buffers with a place: free before an output's first launch and after an input's
    last.
    """
    found = [(s.at, Lifetime(f"kept {s.at}", s.bytes, 0, last)) for s in around.kept]
    for name, seat in around.inputs:
        until = lives[name].last if name in lives else 0
        found.append((seat.at, Lifetime(name, seat.bytes, 0, until)))
    for name, seat in around.outputs:
        since = lives[name].first if name in lives else last
        found.append((seat.at, Lifetime(name, seat.bytes, since, last)))
    return found


def _placed(operand: Operand, offsets: Mapping[str, int]) -> Operand:
    if operand.kind != "buffer":
        return operand
    return Operand("buffer", operand.name, offsets[operand.name])
