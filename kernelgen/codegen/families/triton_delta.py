"""Owns the GPU family of delta-rule decode: a head's state read once, carried on, written once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.delta_roles import DeltaRoles, delta_roles
from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, Wasteful, best, given, masked
from kernelgen.codegen.families.triton_family import Quote
from kernelgen.codegen.families.triton_time import (
    LATENCY_US,
    NEAR_LATENCY_US,
    REDUCE_US,
    UNIT_GB_S,
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

_SUMS = 4
"""sums over a block on the way: two lengths, what keys read, what queries read"""
_REGISTERS = 1 << 16  # of a multiprocessor
_OF_A_KEY = 48
"""registers of a thread for what belongs to keys alone, and for addresses"""


@dataclass(frozen=True)
class DeltaProblem:
    """One token a request through the delta rule, as numbers."""

    requests: int
    heads: int
    keys: int
    values: int
    whole: bool
    """whether a block has to take all columns of a head"""
    sums: int
    """further sums over a head, behind the scan"""
    bytes: int
    flops: int


@dataclass(frozen=True)
class DeltaTile:
    """A block holds all keys of one head and `width` of its columns in registers, so few of them
    that a multiprocessor has room for `blocks` blocks (0: as many as it likes)."""

    width: int
    warps: int
    blocks: int

    def most_registers(self) -> int:
        """Of a thread, where they are limited; else 0."""
        if not self.blocks:
            return 0
        return _REGISTERS // (self.blocks * self.warps * WARP) // 8 * 8

    def footprint(self, problem: DeltaProblem) -> Footprint:
        """Registers: the state, and what each of its rows is multiplied with."""
        state = next_power_of_two(problem.keys) * self.width / (self.warps * WARP)
        shared = 16 * (next_power_of_two(problem.keys) + self.width) * self.warps
        registers, most = frame_registers(1.5 * state + _OF_A_KEY), self.most_registers()
        return Footprint(self.warps, min(registers, most) if most else registers, shared)

    def problems(self, problem: DeltaProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block, parts of heads that are needed whole."""
        found = list(self.footprint(problem).problems(device))
        whole = next_power_of_two(problem.values)
        state = next_power_of_two(problem.keys) * self.width / (self.warps * WARP)
        most = self.most_registers()
        if most and (most > device.max_registers_per_thread or most < state + _OF_A_KEY):
            found.append(f"{self.blocks} blocks would have {most} registers a thread")
        if self.width > max(WARP, whole):
            found.append(f"a part is longer than the {problem.values} columns of a head")
        if problem.whole and self.width < whole:
            found.append(f"all {problem.values} columns of a head are needed at once")
        if self.width * next_power_of_two(problem.keys) < 4 * self.warps * WARP:
            found.append(Wasteful("threads with less than four elements of the state"))
        return tuple(found)

    def time(self, problem: DeltaProblem, device: Device) -> Timing:
        """The state once in and once out. It does not depend on the kernel before: its load begins
        early."""
        parts = ceil_div(problem.values, self.width)
        size = 4 * problem.keys * self.width
        grid = Grid(
            blocks=problem.requests * problem.heads * parts,
            footprint=self.footprint(problem),
            steps=1,
            early_us=LATENCY_US,
            lead_us=NEAR_LATENCY_US + _SUMS * REDUCE_US + size / (UNIT_GB_S * 1e3),
            tail_us=REDUCE_US * problem.sums + size / (UNIT_GB_S * 1e3),
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=problem.bytes,
            vector_ops=float(problem.flops),
            copies=True,
        )
        return timing(grid, demand, device)

    def masks(self, problem: DeltaProblem) -> tuple[str, ...]:
        """Heads that are no power of two."""
        return (
            *masked("keys", problem.keys, next_power_of_two(problem.keys)),
            *masked("values", problem.values, self.width),
        )


def space() -> Iterator[DeltaTile]:
    """All tiles, whole heads of usual sizes first."""
    for width in (128, 64, 32, 256):
        for warps in (8, 4, 16, 2, 1):
            for blocks in (0, 2, 3, 4):
                yield DeltaTile(width, warps, blocks)


@lru_cache(maxsize=1024)
def delta(problem: DeltaProblem, device: Device) -> Best[DeltaProblem] | Refusal:
    """The best tile for a problem."""
    return best(space(), problem, device)


def delta_step_roles(region: Region, phase: str) -> DeltaRoles | Refusal | None:
    """A scan with its surroundings where each request has one token; None in a prompt."""
    return delta_roles(region) if phase == "decode" else None


def quote_delta(
    region: Region,
    roles: DeltaRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile."""
    q, v = (region.value(roles.anchor.inputs[i]).type for i in (0, 2))
    moved, flops = region_bytes(region, sizes), region_flops(region, sizes)
    problem = DeltaProblem(
        requests=sizes.rows,
        heads=q.static_elements // q.row_width,
        keys=q.row_width,
        values=v.row_width,
        whole=roles.whole_heads,
        sums=min(1, len(roles.epilogue)),
        bytes=moved,
        flops=flops,
    )
    found = delta(problem, device)
    if choice is not None:
        found = given(DeltaTile, choice, problem, device)
    return found if isinstance(found, Refusal) else Quote(found, moved, flops, problem)
