"""Owns the GPU family of heads' products: a matrix of its own for each head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.scan_roles import ApartRoles, alone_roles
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
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.hw.device import Device
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.ops import HeadLinear
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

_LEAST = 16  # sides of a tensor core product


@dataclass(frozen=True)
class HeadsProblem:
    """Products of all heads as numbers."""

    rows: int
    heads: int
    k: int
    n: int
    bits: int
    """of an element of rows and matrices"""
    bytes: int
    flops: int


@dataclass(frozen=True)
class HeadsTile:
    """A block computes `outputs` columns of `rows` tokens of one head, `depth` terms at a time."""

    rows: int
    outputs: int
    depth: int
    stages: int
    warps: int

    def footprint(self, problem: HeadsProblem) -> Footprint:
        """Shared memory: stages of both sides. Registers: sums, and the sides on their way."""
        size = problem.bits // 8
        step = (self.rows + self.outputs) * self.depth * size
        threads = self.warps * WARP
        held = (self.rows * self.outputs + step / 4) / threads
        return Footprint(self.warps, frame_registers(1.2 * held + 16), self.stages * step)

    def problems(self, problem: HeadsProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block, and sides that are longer than the problem."""
        found = list(self.footprint(problem).problems(device))
        if self.rows > max(_LEAST, next_power_of_two(problem.rows)):
            found.append(Wasteful("more rows than there are"))
        if self.outputs > max(_LEAST, next_power_of_two(problem.n)):
            found.append(Wasteful("more columns than a head has"))
        if self.depth > max(_LEAST, next_power_of_two(problem.k)):
            found.append(f"a step is longer than the {problem.k} columns of a sum")
        if self.rows * self.outputs < 64 * self.warps:
            found.append(Wasteful("warps without a tile of the product"))
        return tuple(found)

    def time(self, problem: HeadsProblem, device: Device) -> Timing:
        """Matrices once; with many rows the arithmetic of whole tiles."""
        bands, columns = ceil_div(problem.rows, self.rows), ceil_div(problem.n, self.outputs)
        blocks, size = bands * columns * problem.heads, problem.bits // 8
        steps = ceil_div(problem.k, self.depth)
        grid = Grid(
            blocks=blocks,
            footprint=self.footprint(problem),
            steps=steps,
            in_flight=self.stages,
            step_us=0.05,
            early_us=LATENCY_US,
            lead_us=NEAR_LATENCY_US,
        )
        walked = steps * self.depth
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=blocks * (self.rows + self.outputs) * walked * size,
            vector_ops=float(blocks * self.rows * self.outputs),
            tensor_flops=2.0 * blocks * self.rows * self.outputs * walked,
            tensor_dtype="bfloat16" if problem.bits <= 16 else "float32",
            tensor_share=0.4,
        )
        return timing(grid, demand, device)

    def masks(self, problem: HeadsProblem) -> tuple[str, ...]:
        """Sides that do not divide."""
        return (
            *masked("rows", problem.rows, self.rows),
            *masked("columns", problem.n, self.outputs),
            *masked("depth", problem.k, self.depth),
        )


def space() -> Iterator[HeadsTile]:
    """All tiles."""
    for rows in (16, 32, 64, 128):
        for outputs in (64, 128, 32, 16):
            for depth in (64, 128, 32, 16):
                for stages in (2, 3):
                    for warps in (4, 8, 2, 1):
                        yield HeadsTile(rows, outputs, depth, stages, warps)


@lru_cache(maxsize=1024)
def heads(problem: HeadsProblem, device: Device) -> Best[HeadsProblem] | Refusal:
    """The best tile for a problem."""
    return best(space(), problem, device)


def head_linear_roles(region: Region, phase: str) -> ApartRoles | Refusal | None:
    """Products of heads, nothing else."""
    return alone_roles(region, HeadLinear, Trait.HEAD_PRODUCT)


def quote_heads(
    region: Region,
    roles: ApartRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile."""
    op, (x, weight) = roles.anchor.op, roles.anchor.inputs
    assert isinstance(op, HeadLinear)
    matrix = region.value(weight).type
    n, k = op.sizes(matrix)
    problem = HeadsProblem(
        rows=sizes.tokens,
        heads=matrix.static_elements // (n * k),
        k=k,
        n=n,
        bits=max(matrix.dtype.bits, region.value(x).type.dtype.bits),
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
    )
    found = heads(problem, device)
    if choice is not None:
        found = given(HeadsTile, choice, problem, device)
    if isinstance(found, Refusal):
        return found
    return Quote(found, problem.bytes, problem.flops, problem)
