"""Owns the product of up to 64 rows: weights through shared memory to tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, Wasteful, best
from kernelgen.codegen.families.triton_product import Product
from kernelgen.codegen.families.triton_time import (
    LATENCY_US,
    TICKET_US,
    UNIT_GB_S,
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.hw.device import Device
from kernelgen.planner.family import Refusal

MOST_ROWS = 64
_LEAST_ROWS = 16  # the short side of a tensor core product; fewer rows are padded
AHEAD_LINES = 8
"""cache lines of a weight row, 1 KiB: about what the first stages of a loop read"""
_TENSOR_SHARE = 0.6  # of the rate of a large product: tiles are small and wait for memory

_STAGED_SHARE = 0.93
"""of the read bandwidth: 24,576 × 4,096 takes 48.7 µs at 8 rows where one row takes 47.8 (H200)"""
_THROUGH_OPS = 5  # to float32, back, to shared memory and out of it again, where rows are prepared


def padded_rows(rows: int) -> int:
    """Rows that the tensor cores see."""
    return max(_LEAST_ROWS, next_power_of_two(rows))


@dataclass(frozen=True)
class SkinnyTile:
    """A block computes `outputs` columns of up to `rows` rows over one of `splits` parts of K,
    `depth` at a time.

    `ahead`: cache lines of each weight row that it asks for before it waits for the kernel before.
    """

    rows: int
    outputs: int
    depth: int
    splits: int
    stages: int
    warps: int
    ahead: int

    def steps(self, problem: Product) -> int:
        """Steps of a block over its part of K."""
        return ceil_div(ceil_div(problem.k, self.depth), self.splits)

    def footprint(self, problem: Product) -> Footprint:
        """Shared memory: `stages` steps of weights and rows. Registers: float32 sums and one step's
        operands.
        """
        wide = self.outputs * problem.most_matrices
        rows, threads = self.rows, self.warps * WARP
        step = self.depth * (wide * problem.weight_bits + rows * problem.row_bits) // 8
        sums, operands = wide * rows / threads, (wide + rows) * 16 / threads
        return Footprint(self.warps, frame_registers(sums + operands), self.stages * step)

    def problems(self, problem: Product, device: Device) -> tuple[str, ...]:
        """Limits of the block, and splits or warps that would be idle."""
        found = list(self.footprint(problem).problems(device))
        if self.rows != padded_rows(problem.rows):
            found.append(f"{problem.rows} rows in a tile of {self.rows}")
        if self.depth > max(64, next_power_of_two(problem.k)):
            found.append(Wasteful(f"a step is longer than the row of {problem.k}"))
        if self.splits > 1 and self.steps(problem) < self.stages:
            few = f"K = {problem.k} has fewer steps for each split than are in flight"
            found.append(Wasteful(few))
        if self.outputs * problem.most_matrices < 16 * self.warps // 4:
            found.append("fewer than 16 columns for four warps")
        return tuple(found)

    def step_us(self, problem: Product, device: Device) -> float:
        """The products of one step, a chain. Tiles below 64 columns do not use the wide
        instructions of sm_90.
        """
        base, each = (0.1, 0.0012) if self.outputs >= 64 and device.has("wgmma") else (0.17, 0.0028)
        return self.depth / 64 * (base + each * self.rows)

    def partial_bytes(self, problem: Product) -> int:
        """float32 sums of all splits, whole tiles, and the row statistics that they gathered."""
        if self.splits == 1:
            return 0
        statistics = problem.prep.summed if problem.prep else 0
        each = self.rows * (self.outputs * problem.most_matrices + statistics)
        return self.splits * problem.tiles(self.outputs) * each * 4

    def merge_us(self, problem: Product) -> float:
        """The ticket, and the last block of a tile that reads the sums of all splits."""
        if self.splits == 1:
            return 0.0
        sums = self.splits * problem.rows * self.outputs * problem.most_matrices * 4
        return TICKET_US + sums / (UNIT_GB_S * 1e3)

    def time(self, problem: Product, device: Device) -> Timing:
        """Weights from memory once; each block reads (and prepares) its part of all rows."""
        tiles, footprint = problem.tiles(self.outputs), self.footprint(problem)
        blocks, rows = tiles * self.splits, self.rows
        weights = problem.weight_rows * problem.k
        traffic = problem.row_traffic(tiles, problem.rows, footprint, device)
        grid = Grid(
            blocks=blocks,
            footprint=footprint,
            steps=self.steps(problem),
            in_flight=max(1, self.stages - 1),
            step_us=self.step_us(problem, device),
            early_us=LATENCY_US,
            lead_us=problem.lead_us,
            tail_us=self.merge_us(problem),
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=weights * problem.weight_bits // 8
            + traffic
            + 2 * self.partial_bytes(problem),
            vector_ops=problem.weight_rows * problem.rows * problem.finish_ops * self.splits,
            serial_ops=problem.prep_ops(tiles, rows, through=_THROUGH_OPS),
            tensor_flops=2.0 * weights * rows,
            tensor_dtype=problem.math,
            tensor_share=_TENSOR_SHARE,
            bandwidth_share=_STAGED_SHARE,
        )
        return timing(grid, demand, device)

    def masks(self, problem: Product) -> tuple[str, ...]:
        """Rows are padded to the tensor cores' side; the last step and the last block may be partly
        empty.
        """
        return problem.masks(self.rows, self.outputs, self.depth)


def space(rows: int) -> Iterator[SkinnyTile]:
    """All tiles for so many padded rows, those without splits first."""
    for splits in (1, 2, 4, 8):
        for outputs, warps in ((64, 4), (128, 4), (128, 8), (32, 4)):
            for depth in (128, 64, 256):
                for stages in (4, 3, 6):
                    yield SkinnyTile(rows, outputs, depth, splits, stages, warps, AHEAD_LINES)


@lru_cache(maxsize=4096)
def skinny(problem: Product, device: Device) -> Best[Product] | Refusal:
    """The best tile for a problem; refused above 64 rows."""
    if problem.rows > MOST_ROWS:
        return Refusal(f"{problem.rows} rows, a tile holds at most {MOST_ROWS}")
    return best(space(padded_rows(problem.rows)), problem, device)
