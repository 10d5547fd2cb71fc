"""Owns the product with packed matrices: codes become numbers on their way to tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.roles import LinearRoles, linear_roles
from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, Wasteful, best
from kernelgen.codegen.families.triton_product import Product
from kernelgen.codegen.families.triton_time import LATENCY_US, Demand, Grid, Timing, timing
from kernelgen.formats import WeightFormat
from kernelgen.hw.device import Device
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

_LEAST_WORDS = 16  # of 32 bits: codes at one place of each are a product of their own
_DECODE_OPS = 8
"""instructions that make a number of a code and scale it; counted in the text of the kernel"""
_WORD_OPS = 3
"""the same on vector units, multiplication included: shift, mask, fused multiply-add"""
_SHARE = 0.5
"""of the rate of large products, where weights pass registers before they are multiplied. Assumed
until it is measured."""
_MOST_ROWS = 128


def packed_format(region: Region, roles: LinearRoles) -> WeightFormat | None:
    """The format of a product's matrices; None where they are plain."""
    kind = region.value(roles.groups[0].weights[0]).type.dtype
    return kind if isinstance(kind, WeightFormat) else None


def packed_roles(region: Region, phase: str) -> LinearRoles | Refusal | None:
    """Products of one row whose matrices are packed."""
    roles = region.recall("linear", lambda: linear_roles(region))
    if isinstance(roles, LinearRoles) and packed_format(region, roles) is None:
        return Refusal("its matrices are not packed")
    return roles


@dataclass(frozen=True)
class PackedTile:
    """A block computes `outputs` columns of `rows` rows, `depth` of K at a time."""

    rows: int
    outputs: int
    depth: int
    stages: int
    warps: int

    def footprint(self, problem: Product) -> Footprint:
        """Shared memory: `stages` steps of codes and rows, one of numbers. Registers: the sums, and
        a step of numbers as float32."""
        wide = self.outputs * problem.most_matrices
        step = self.depth * (wide * problem.weight_bits + self.rows * problem.row_bits) // 8
        numbers = self.outputs * self.depth * problem.row_bits // 8
        held = wide * self.rows * 1.25 + self.outputs * self.depth * problem.weight_bits / 4
        registers = frame_registers(held / (self.warps * WARP))
        return Footprint(self.warps, registers, self.stages * step + numbers)

    def problems(self, problem: Product, device: Device) -> tuple[str, ...]:
        """Limits of the block, and steps that no row fills."""
        found = list(self.footprint(problem).problems(device))
        least = _LEAST_WORDS * 32 // problem.weight_bits
        if self.depth < least:
            found.append(f"fewer than {_LEAST_WORDS} words of codes for a tensor core product")
        if self.depth > max(64, least, next_power_of_two(problem.k)):
            found.append(f"a step is longer than the row of {problem.k}")
        return tuple(found)

    def time(self, problem: Product, device: Device) -> Timing:
        """Codes once from memory for all bands, decoded again by each of them."""
        bands, columns = ceil_div(problem.rows, self.rows), problem.tiles(self.outputs)
        blocks, footprint = bands * columns, self.footprint(problem)
        padded = bands * self.rows * columns * self.outputs * problem.k * problem.most_matrices
        weights = bands * problem.weight_rows * problem.k
        traffic = problem.row_traffic(blocks, self.rows, footprint, device)
        grid = Grid(
            blocks=blocks,
            footprint=footprint,
            steps=ceil_div(problem.k, self.depth),
            in_flight=max(1, self.stages - 1),
            early_us=LATENCY_US,
            lead_us=problem.lead_us,
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=weights * problem.weight_bits // 8 + traffic,
            vector_ops=weights * _DECODE_OPS
            + problem.prep_ops(blocks, self.rows)
            + problem.rows * problem.weight_rows * problem.finish_ops,
            tensor_flops=2.0 * padded,
            tensor_dtype=problem.math,
            tensor_share=_SHARE,
        )
        return timing(grid, demand, device)

    def masks(self, problem: Product) -> tuple[str, ...]:
        """The last band of rows, the last step, and the last block of each matrix."""
        return problem.masks(self.rows, self.outputs, self.depth)


@dataclass(frozen=True)
class PackedGemvTile:
    """A block computes `outputs` columns of one row; it walks K in steps of `depth`."""

    outputs: int
    depth: int
    warps: int

    def footprint(self, problem: Product) -> Footprint:
        """Registers: the codes of a step and of the next, their rows, and a sum for each chunk."""
        codes = self.outputs * problem.most_matrices * self.depth * problem.weight_bits / 32
        held = codes * 2.25 + self.depth
        registers = frame_registers(held / (self.warps * WARP))
        return Footprint(self.warps, registers, shared_bytes=self.warps * 128)

    def problems(self, problem: Product, device: Device) -> tuple[str, ...]:
        """Limits of the block, steps that no row fills, threads without a chunk."""
        found = list(self.footprint(problem).problems(device))
        if self.depth * problem.weight_bits // 128 < self.warps * WARP:
            # Rows then have another layout than codes, which are moved through shared memory.
            found.append(Wasteful("less than 16 bytes of each row of codes for a thread and step"))
        if self.depth > max(1024, next_power_of_two(problem.k)):
            found.append(Wasteful(f"a step is longer than the row of {problem.k}"))
        return tuple(found)

    def time(self, problem: Product, device: Device) -> Timing:
        """As the plain product; codes cost instructions, of which rows share none."""
        blocks, footprint = problem.tiles(self.outputs), self.footprint(problem)
        weights = problem.weight_rows * problem.k
        grid = Grid(
            blocks=blocks,
            footprint=footprint,
            steps=ceil_div(problem.k, self.depth),
            early_us=LATENCY_US,
            lead_us=problem.lead_us,
        )
        traffic = problem.row_traffic(blocks, problem.rows, footprint, device)
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=weights * problem.weight_bits // 8 + traffic,
            vector_ops=weights * _WORD_OPS + 2 * blocks * problem.rows * problem.k,
            serial_ops=problem.prep_ops(blocks, problem.rows),
        )
        return timing(grid, demand, device)

    def masks(self, problem: Product) -> tuple[str, ...]:
        """The last step of the row and the last block of each matrix."""
        return problem.masks(1, self.outputs, self.depth)


def padded_rows(rows: int) -> int:
    """Rows of a block: what tensor cores multiply at least, or a power of two above."""
    return min(_MOST_ROWS, max(16, next_power_of_two(rows)))


def space(rows: int) -> Iterator[PackedTile]:
    """All tiles for so many rows."""
    for high in dict.fromkeys((padded_rows(rows), min(64, padded_rows(rows)))):
        for outputs in (64, 32, 16, 128):
            for depth in (128, 64, 256):
                for stages in (3, 2, 4):
                    for warps in (4, 8):
                        yield PackedTile(high, outputs, depth, stages, warps)


def gemv_space() -> Iterator[PackedGemvTile]:
    """All tiles of one row, wide steps first."""
    for depth in (4096, 2048, 1024, 512, 8192):
        for warps in (4, 2, 8, 1):
            for outputs in (4, 8, 2, 1, 16):
                yield PackedGemvTile(outputs, depth, warps)


@lru_cache(maxsize=4096)
def gemv_packed(problem: Product, device: Device) -> Best[Product] | Refusal:
    """The best tile for one row; refused for more."""
    if problem.rows > 1:
        return Refusal(f"{problem.rows} rows, which tensor cores multiply at the cost of one")
    return best(gemv_space(), problem, device)


@lru_cache(maxsize=4096)
def packed(problem: Product, device: Device) -> Best[Product] | Refusal:
    """The best tile for a problem."""
    return best(space(problem.rows), problem, device)
