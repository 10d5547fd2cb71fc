"""Owns the row kernels: norms, rotations, inserts, embeddings, whatever a row decides alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.roles import RowRoles, row_roles
from kernelgen.codegen.families.row_sections import mixed_rows, row_sections
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
    NEAR_LATENCY_US,
    REDUCE_US,
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Node
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region, bits

_LIVE_VALUES = 3  # row values that a thread holds at a time: two inputs and a result


@dataclass(frozen=True)
class RowsProblem:
    """Row ops as numbers."""

    rows: int
    """token or logit rows, times heads where the ops work on single heads"""
    width: int
    depth: int
    """row reductions that wait for one another"""
    gathers: bool
    """whether an index has to be loaded before the row"""
    bytes: int
    flops: int


def rows_problem(region: Region, sizes: Sizes) -> RowsProblem:
    """The numbers of a matched region; the widest rows that it stores decide rows and width."""
    widest = max(row_sections(region), key=lambda s: (s.width, s.rows(sizes)))
    return RowsProblem(
        rows=widest.rows(sizes),
        width=widest.width,
        depth=_depth(region),
        gathers=bool(region.with_trait(Trait.GATHER | Trait.SELECT | Trait.STATE_WRITE)),
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
    )


def _depth(region: Region) -> int:
    """The most row reductions on one path."""
    net = region.network
    found: dict[int, int] = {}
    for i in bits(region.mask):
        before = max((found[j] for j in bits(net.before[i] & region.mask)), default=0)
        found[i] = before + _reduces(net.nodes[i])
    return max(found.values())


def _reduces(node: Node) -> int:
    return int(node.op.has(Trait.ROW_REDUCE | Trait.ROW_MIX))


@dataclass(frozen=True)
class RowsTile:
    """A block handles `rows` rows; parts of a row wider than `width` are different blocks."""

    rows: int
    width: int
    warps: int

    def footprint(self, problem: RowsProblem) -> Footprint:
        """Registers: a few float32 values for each element of the block."""
        each = _LIVE_VALUES * self.rows * self.width / (self.warps * WARP)
        return Footprint(self.warps, frame_registers(each), shared_bytes=self.warps * 256)

    def problems(self, problem: RowsProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block, and parts or threads that would be idle."""
        found = list(self.footprint(problem).problems(device))
        if self.width > max(WARP, next_power_of_two(problem.width)):
            found.append(f"a part is longer than the row of {problem.width}")
        if problem.depth and self.width < problem.width:
            found.append(f"a reduction needs the whole row of {problem.width}")
        if self.rows > 1 and (self.width < problem.width or self.rows >= 2 * problem.rows):
            found.append("several rows in a block only where there are as many and each fits whole")
        if self.rows * self.width < self.warps * WARP:
            found.append(Wasteful("more threads than elements"))
        return tuple(found)

    def time(self, problem: RowsProblem, device: Device) -> Timing:
        """Inputs once, outputs once."""
        parts = ceil_div(problem.width, self.width)
        grid = Grid(
            blocks=ceil_div(problem.rows, self.rows) * parts,
            footprint=self.footprint(problem),
            steps=1,
            lead_us=NEAR_LATENCY_US * problem.gathers + REDUCE_US * max(0, problem.depth - 1),
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=problem.bytes,
            vector_ops=problem.flops + problem.bytes / 2,
            copies=True,
        )
        return timing(grid, demand, device)

    def masks(self, problem: RowsProblem) -> tuple[str, ...]:
        """The rest of a row and the last block."""
        return (
            *masked("width", problem.width, self.width),
            *masked("rows", problem.rows, self.rows),
        )


def space(width: int) -> Iterator[RowsTile]:
    """Tiles for rows of that width: whole, or in parts."""
    whole = max(WARP, next_power_of_two(width))
    for part in dict.fromkeys((min(whole, 4096), whole, min(whole, 1024))):
        for rows in (1, 2, 4, 8):
            for warps in (16, 8, 4, 2) if part > 4096 else (4, 8, 2, 1):
                yield RowsTile(rows, part, warps)


@lru_cache(maxsize=4096)
def rows(problem: RowsProblem, device: Device) -> Best[RowsProblem] | Refusal:
    """The best tile for a problem."""
    return best(space(problem.width), problem, device)


def rows_roles(region: Region, phase: str) -> RowRoles | Refusal | None:
    """Row ops, also side by side: blocks take the rows of each in turn."""
    roles = row_roles(region, side_by_side=True)
    return (mixed_rows(region) or roles) if isinstance(roles, RowRoles) else roles


def quote_rows(
    region: Region,
    roles: RowRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile."""
    problem = rows_problem(region, sizes)
    found = rows(problem, device)
    if choice is not None:
        found = given(RowsTile, choice, problem, device)
    return (
        found if isinstance(found, Refusal) else Quote(found, problem.bytes, problem.flops, problem)
    )
