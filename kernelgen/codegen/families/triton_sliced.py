"""Owns the product of 2 to 16 rows: weights wait in registers, the warps of a block share K."""

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
    REDUCE_US,
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.hw.device import Device
from kernelgen.planner.family import Refusal

MOST_ROWS = 16
"""at 32 every shape measured was slower than `skinny` (H200: 5.8 to 29.4 µs against 5.2 to 27.6)"""
_LEAST_ROWS = 8  # the short side of an m16n8k16 product
_PRODUCT_US = 0.02
"""one 16 × 8 × 16 product after another of the same sums: 33 cycles"""
_TENSOR_SHARE = 0.3


def padded_rows(rows: int) -> int:
    """Rows that the tensor cores see."""
    return max(_LEAST_ROWS, next_power_of_two(rows))


@dataclass(frozen=True)
class SlicedTile:
    """A block computes `outputs` columns of all rows; it walks K in steps of `depth`, of which each
    of its warps multiplies one slice.

    The weights of a step go from memory to registers while the kernel before still runs.
    """

    rows: int
    outputs: int
    depth: int
    warps: int

    def footprint(self, problem: Product) -> Footprint:
        """Registers: the weights of a step (and of the next), sums, the rows on their way."""
        threads, wide = self.warps * WARP, self.outputs * problem.most_matrices
        step = wide * self.depth * problem.weight_bits / 32 / threads
        ahead = step if self.depth < problem.k else 0.0
        sums = wide * self.rows / WARP
        rows = self.rows * self.depth * problem.read_bits / 32 / threads
        shared = self.rows * self.depth * problem.row_bits // 8
        return Footprint(self.warps, frame_registers(step + ahead + sums + rows), shared)

    def problems(self, problem: Product, device: Device) -> tuple[str, ...]:
        """Limits of the block, slices below one product, and steps that no row fills."""
        found = list(self.footprint(problem).problems(device))
        if problem.math != "bfloat16":
            found.append(f"{problem.math} rows: tensor cores multiply bfloat16")
        if self.rows != padded_rows(problem.rows):
            found.append(f"{problem.rows} rows in a tile of {self.rows}")
        if self.depth < 16 * self.warps:
            found.append(f"slices of {self.depth // self.warps}, a product takes 16")
        if self.depth > max(256, next_power_of_two(problem.k)):
            found.append(Wasteful(f"a step is longer than the row of {problem.k}"))
        return tuple(found)

    def time(self, problem: Product, device: Device) -> Timing:
        """Weights from memory once; each block reads (and prepares) all rows."""
        tiles, footprint = problem.tiles(self.outputs), self.footprint(problem)
        weights = problem.weight_rows * problem.k
        traffic = problem.row_traffic(tiles, problem.rows, footprint, device)
        chain = self.depth / self.warps / 16 * self.rows / 8 * problem.most_matrices
        grid = Grid(
            blocks=tiles,
            footprint=footprint,
            steps=ceil_div(problem.k, self.depth),
            in_flight=2,
            step_us=chain * _PRODUCT_US * max(1, self.outputs // 16),
            early_us=LATENCY_US,
            lead_us=problem.lead_us,
            tail_us=REDUCE_US,
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=weights * problem.weight_bits // 8 + traffic,
            vector_ops=problem.weight_rows * problem.rows * problem.finish_ops,
            serial_ops=problem.prep_ops(tiles, self.rows, through=2),
            tensor_flops=2.0 * weights * self.rows,
            tensor_dtype=problem.math,
            tensor_share=_TENSOR_SHARE,
        )
        return timing(grid, demand, device)

    def masks(self, problem: Product) -> tuple[str, ...]:
        """Rows are padded to the tensor cores' side; the last step and the last block may be partly
        empty.
        """
        return problem.masks(self.rows, self.outputs, self.depth)


def space(rows: int) -> Iterator[SlicedTile]:
    """All tiles for so many padded rows."""
    for outputs in (16, 32, 64):
        for depth in (1024, 2048, 512, 4096, 256):
            for warps in (4, 8, 2):
                yield SlicedTile(rows, outputs, depth, warps)


@lru_cache(maxsize=4096)
def sliced(problem: Product, device: Device) -> Best[Product] | Refusal:
    """The best tile for a problem; refused above 16 rows and for one, which needs no padding."""
    if problem.rows > MOST_ROWS or problem.rows == 1:
        return Refusal(f"{problem.rows} rows, a tile holds 2 to {MOST_ROWS}")
    return best(space(padded_rows(problem.rows)), problem, device)
