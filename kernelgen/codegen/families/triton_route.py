"""Owns the GPU family of a router's choice: tiles, their limits and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.expert_roles import RouteRoles, route_roles
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
from kernelgen.ir.types import Sizes
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region


@dataclass(frozen=True)
class RouteProblem:
    """A router's choice as numbers."""

    rows: int
    experts: int
    top: int
    bytes: int
    flops: int


@dataclass(frozen=True)
class RouteTile:
    """A block takes `rows` tokens whole."""

    rows: int
    warps: int

    def footprint(self, problem: RouteProblem) -> Footprint:
        """Registers: logit, value and a key of two words for each expert."""
        each = 4 * self.rows * next_power_of_two(problem.experts) / (self.warps * WARP)
        return Footprint(self.warps, frame_registers(each), self.warps * 512)

    def problems(self, problem: RouteProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block, and rows that nobody has."""
        found = list(self.footprint(problem).problems(device))
        if self.rows > next_power_of_two(problem.rows):
            found.append(Wasteful("more rows than there are"))
        return tuple(found)

    def time(self, problem: RouteProblem, device: Device) -> Timing:
        """One reduction after another, a choice each."""
        grid = Grid(
            blocks=ceil_div(problem.rows, self.rows),
            footprint=self.footprint(problem),
            steps=1,
            lead_us=REDUCE_US * problem.top * (1 if self.warps > 1 else 0.5),
            tail_us=NEAR_LATENCY_US,
        )
        ops = float(problem.rows * next_power_of_two(problem.experts) * problem.top * 6)
        demand = Demand(problem.bytes, problem.bytes, vector_ops=ops)
        return timing(grid, demand, device)

    def masks(self, problem: RouteProblem) -> tuple[str, ...]:
        """Experts up to a power of two."""
        return masked("experts", problem.experts, next_power_of_two(problem.experts))


@lru_cache(maxsize=1024)
def _route(problem: RouteProblem, device: Device) -> Best[RouteProblem] | Refusal:
    space = (RouteTile(rows, warps) for rows in (1, 2, 4, 8) for warps in (1, 2, 4, 8))
    return best(space, problem, device)


def route_roles_of(region: Region, phase: str) -> RouteRoles | Refusal | None:
    """A router's choice."""
    return region.recall("route", lambda: route_roles(region))


def quote_route(
    region: Region,
    roles: RouteRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile."""
    moved, flops = region_bytes(region, sizes), region_flops(region, sizes)
    first = roles.nodes[0]
    experts = max(region.value(n.inputs[0]).type.row_width for n in roles.nodes)
    top = region.value(first.outputs[0]).type.row_width
    problem = RouteProblem(sizes.tokens, experts, top, moved, flops)
    found = _route(problem, device)
    if choice is not None:
        found = given(RouteTile, choice, problem, device)
    return found if isinstance(found, Refusal) else Quote(found, moved, flops, problem)
