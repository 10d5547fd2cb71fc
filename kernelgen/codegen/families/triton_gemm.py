"""Owns the product of many rows: square tiles on tensor cores, operands in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from kernelgen.codegen.families.triton_block import WARP, Footprint, ceil_div, frame_registers
from kernelgen.codegen.families.triton_choice import Best, best
from kernelgen.codegen.families.triton_product import Product
from kernelgen.codegen.families.triton_time import LATENCY_US, Demand, Grid, Timing, timing
from kernelgen.hw.device import Device
from kernelgen.planner.family import Refusal

LEAST_ROWS = 65
_BEST_SHARE = 0.84
"""of the rate at 8192³, in full waves of the largest tile and without their finish. H200, 2,048
rows: 630 to 680 of 788 TFLOP/s where a row meets a residual or an activation, 790 for one shape"""
_BEST_SIDE = 170.7
"""harmonic mean of the sides of a 128 × 256 tile; smaller tiles read their operands more often"""
_SIDE_POWER = 0.35
"""how the rate falls with the side: 0.80 at 128 × 128, 0.62 at 64 × 64. Assumed."""
_MOST_SUMS = 128
"""float32 sums of a thread where the operands of the tensor cores are registers as well"""
_THROUGH_REGISTERS = 0.75
"""of the rate, where rows are prepared on their way from memory to the tensor cores. Assumed."""


@dataclass(frozen=True)
class GemmTile:
    """A block computes `outputs` columns of `rows` rows, `depth` of K at a time."""

    rows: int
    outputs: int
    depth: int
    stages: int
    warps: int
    best_share: ClassVar[float] = _BEST_SHARE
    cache_gain: ClassVar[float] = 1.0
    """how much faster than loads by addresses operands come through the L2 cache"""

    def footprint(self, problem: Product) -> Footprint:
        """Shared memory: `stages` steps of both operands. Registers: the float32 sums."""
        wide = self.outputs * problem.most_matrices
        step = self.depth * (wide * problem.weight_bits + self.rows * problem.row_bits) // 8
        sums = wide * self.rows / (self.warps * WARP)
        return Footprint(self.warps, frame_registers(sums * 1.25), self.stages * step)

    def problems(self, problem: Product, device: Device) -> tuple[str, ...]:
        """Limits of the block."""
        found = list(self.footprint(problem).problems(device))
        sums = self.outputs * problem.most_matrices * self.rows / (self.warps * WARP)
        if sums >= _MOST_SUMS and not device.has("wgmma"):
            found.append(f"{sums:g} sums a thread leave too few registers for the operands")
        return tuple(found)

    def share(self, problem: Product) -> float:
        """Part of the large product's rate that this tile reaches on full blocks."""
        wide = self.outputs * problem.most_matrices
        side = 2 * wide * self.rows / (wide + self.rows)
        through = _THROUGH_REGISTERS if problem.prep else 1.0
        size = float((side / _BEST_SIDE) ** _SIDE_POWER)
        return self.best_share * min(1.0, size) * through

    def time(self, problem: Product, device: Device) -> Timing:
        """Padded arithmetic at the tile's rate; every block of a column reads (and prepares) its
        rows again.
        """
        bands, columns = ceil_div(problem.rows, self.rows), problem.tiles(self.outputs)
        blocks, footprint = bands * columns, self.footprint(problem)
        padded = bands * self.rows * columns * self.outputs * problem.k * problem.most_matrices
        traffic = problem.row_traffic(blocks, self.rows, footprint, device)
        weights = bands * problem.weight_rows * problem.k * problem.weight_bits // 8
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
            cache_bytes=round((weights + traffic) / self.cache_gain),
            vector_ops=problem.prep_ops(blocks, self.rows)
            + problem.rows * problem.weight_rows * problem.finish_ops,
            tensor_flops=2.0 * padded,
            tensor_dtype=problem.math,
            tensor_share=self.share(problem),
            tensor_idle_us=self.finish_us(problem, blocks, device),
        )
        return timing(grid, demand, device)

    def finish_us(self, problem: Product, blocks: int, device: Device) -> float:
        """What blocks read and write at their end, wave after wave: others that share their
        multiprocessor hide it in part, to one that is alone it is lost.
        """
        beside = self.footprint(problem).resident(device)
        weights = problem.weight_rows * problem.k * problem.weight_bits // 8
        elements = problem.rows * sum(columns for columns, _ in problem.groups)
        each = max(0, problem.bytes - problem.row_bytes - weights) / elements
        wave = device.units * each * self.rows * self.outputs
        return ceil_div(blocks, device.units) * wave / (device.copy_gb_s * 1e3) / beside

    def masks(self, problem: Product) -> tuple[str, ...]:
        """The last band of rows, the last step, and the last block of each matrix."""
        return problem.masks(self.rows, self.outputs, self.depth)


def space() -> Iterator[GemmTile]:
    """All tiles, large ones first."""
    for rows in (128, 64, 256):
        for outputs in (256, 128, 64):
            for depth in (64, 32):
                for stages in (4, 3, 2):
                    for warps in (8, 4):
                        yield GemmTile(rows, outputs, depth, stages, warps)


@lru_cache(maxsize=4096)
def gemm(problem: Product, device: Device) -> Best[Product] | Refusal:
    """The best tile for a problem; refused for a few rows, where a skinny tile wastes less."""
    if problem.rows < LEAST_ROWS:
        return Refusal(f"{problem.rows} rows, a tile of 64 or more would be mostly padding")
    return best(space(), problem, device)
