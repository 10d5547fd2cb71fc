"""Owns the GPU family of short convolutions: tiles of tokens and columns, the window kept behind
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.scan_roles import ApartRoles, conv_roles
from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, Wasteful, best, given, masked
from kernelgen.codegen.families.triton_family import Quote
from kernelgen.codegen.families.triton_time import NEAR_LATENCY_US, Demand, Grid, Timing, timing
from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.ops import ShortConv
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

_UNROLLED = 6  # rows whose loads a thread has under way


@dataclass(frozen=True)
class ConvProblem:
    """A short convolution as numbers."""

    tokens: int
    requests: int
    columns: int
    taps: int
    bytes: int
    flops: int


@dataclass(frozen=True)
class ConvTile:
    """A block takes `rows` tokens of one request, `width` columns of them; the first block of a
    request also keeps its window, so that nobody else has to read the old one."""

    rows: int
    width: int
    warps: int

    def footprint(self, problem: ConvProblem) -> Footprint:
        """Registers: taps and window of each column, rows on their way."""
        columns = self.width / (self.warps * WARP)
        held = columns * (2 * problem.taps + min(self.rows, _UNROLLED))
        return Footprint(self.warps, frame_registers(held + 8), self.warps * 256)

    def problems(self, problem: ConvProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block, tiles that do not reach over the window, idle threads."""
        found = list(self.footprint(problem).problems(device))
        if self.rows < problem.taps - 1:
            found.append(f"{problem.taps} taps reach over more than {self.rows} rows")
        if self.width > max(WARP, next_power_of_two(problem.columns)):
            found.append(f"a part is longer than the row of {problem.columns}")
        if self.width < self.warps * WARP:
            found.append(Wasteful("more threads than columns"))
        return tuple(found)

    def time(self, problem: ConvProblem, device: Device) -> Timing:
        """Rows once, results once; the window before each tile again."""
        tiles = ceil_div(problem.tokens, self.rows) + problem.requests - 1
        grid = Grid(
            blocks=max(1, tiles) * ceil_div(problem.columns, self.width),
            footprint=self.footprint(problem),
            steps=1,
            early_us=NEAR_LATENCY_US,
            lead_us=NEAR_LATENCY_US,
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=problem.bytes * (self.rows + problem.taps - 1) // self.rows,
            vector_ops=float(problem.flops + problem.bytes),
            copies=True,
        )
        return timing(grid, demand, device)

    def masks(self, problem: ConvProblem) -> tuple[str, ...]:
        """The rest of the columns and of a request's tokens."""
        return (
            "masked rows: the last tile of each request",
            *masked("columns", problem.columns, self.width),
        )


def space() -> Iterator[ConvTile]:
    """All tiles."""
    for rows in (16, 8, 4, 32):
        for width in (1024, 512, 256, 128, 64, 32):
            for warps in (4, 8, 2, 1):
                yield ConvTile(rows, width, warps)


@lru_cache(maxsize=1024)
def conv(problem: ConvProblem, device: Device) -> Best[ConvProblem] | Refusal:
    """The best tile for a problem."""
    return best(space(), problem, device)


def short_conv_roles(region: Region, phase: str) -> ApartRoles | Refusal | None:
    """A convolution finished element by element."""
    return conv_roles(region, ShortConv)


def quote_conv(
    region: Region,
    roles: ApartRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile."""
    weight = region.value(roles.anchor.inputs[1]).type
    columns, taps = weight.static_elements // weight.row_width, weight.row_width
    moved, flops = region_bytes(region, sizes), region_flops(region, sizes)
    problem = ConvProblem(sizes.tokens, sizes.rows, columns, taps, moved, flops)
    found = conv(problem, device)
    if choice is not None:
        found = given(ConvTile, choice, problem, device)
    return found if isinstance(found, Refusal) else Quote(found, moved, flops, problem)
