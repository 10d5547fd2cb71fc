"""Owns the product of up to 16 rows with packed matrices: codes stay in the registers they hit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, Wasteful, best
from kernelgen.codegen.families.triton_product import Product
from kernelgen.codegen.families.triton_sliced import MOST_ROWS, padded_rows
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

_LANES_ALONG = 4
_LANE_BYTES = 16
_CODE_OPS = {4: 1.6, 8: 2.6}
"""vector instructions that a code of so many bits takes on its way to the tensor cores, in units of
the model's multiply-add: 1.9 to 3.5 and 3.2 are counted in the machine code"""
_PRODUCT_US = 0.02
_TENSOR_SHARE = 0.3


@dataclass(frozen=True)
class SlicedPackedTile:
    """A block computes `outputs` columns of all rows; each of its warps takes `steps` × 64 bytes of
    every row of codes at a time. Codes of `ahead` such steps are on their way: all of them before
    the kernel before this one has ended, then one is asked for whenever one has been multiplied."""

    rows: int
    outputs: int
    steps: int
    warps: int
    ahead: int

    def depth(self, problem: Product) -> int:
        """Columns in a step of the whole block."""
        return self.warps * self.steps * _LANES_ALONG * _LANE_BYTES * 8 // problem.weight_bits

    def footprint(self, problem: Product) -> Footprint:
        """Registers: codes of the steps on their way, numbers of an eighth of one, rows, sums."""
        high, bands = self.outputs * problem.most_matrices // 8, self.rows // 8
        codes, numbers = 4 * high * self.steps * self.ahead, 8 * high
        sums = self.outputs * self.rows / WARP
        rows = bands * (16 if problem.prep else 4)
        held = codes + numbers + rows + sums * problem.most_matrices
        shared = self.outputs * self.rows * self.warps * 4
        return Footprint(self.warps, frame_registers(held), shared)

    def problems(self, problem: Product, device: Device) -> tuple[str, ...]:
        """Limits of the block, and steps that no row fills."""
        found = list(self.footprint(problem).problems(device))
        if problem.math != "bfloat16":
            found.append(f"{problem.math} rows: tensor cores multiply bfloat16")
        if self.rows != padded_rows(problem.rows):
            found.append(f"{problem.rows} rows in a tile of {self.rows}")
        if self.outputs < 16:
            found.append(f"{self.outputs} columns, a product takes 16")
        if self.depth(problem) > max(256, next_power_of_two(problem.k)):
            found.append(Wasteful(f"a step is longer than the row of {problem.k}"))
        if (self.ahead - 1) * self.depth(problem) >= max(256, next_power_of_two(problem.k)):
            found.append(Wasteful(f"{self.ahead} steps are longer than the row of {problem.k}"))
        return tuple(found)

    def time(self, problem: Product, device: Device) -> Timing:
        """Codes from memory once; each block reads (and prepares) all rows."""
        tiles, footprint = problem.tiles(self.outputs), self.footprint(problem)
        weights = problem.weight_rows * problem.k
        depth = self.depth(problem)
        chain = depth / self.warps / 16 * self.rows / 8 * problem.most_matrices
        grid = Grid(
            blocks=tiles,
            footprint=footprint,
            steps=ceil_div(problem.k, depth),
            in_flight=self.ahead,
            step_us=chain * _PRODUCT_US * max(1, self.outputs // 16),
            early_us=LATENCY_US,
            lead_us=problem.lead_us,
            tail_us=REDUCE_US,
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=weights * problem.weight_bits // 8
            + problem.row_traffic(tiles, problem.rows, footprint, device),
            vector_ops=weights * _CODE_OPS[8 if problem.weight_bits > 4 else 4]
            + problem.weight_rows * problem.rows * problem.finish_ops,
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
        return problem.masks(self.rows, self.outputs, self.depth(problem))


def space(rows: int) -> Iterator[SlicedPackedTile]:
    """All tiles for so many padded rows."""
    sizes = product((16, 32, 64), (2, 1, 4, 8), (4, 8, 2), (2, 3, 4, 1))
    for outputs, steps, warps, ahead in sizes:
        yield SlicedPackedTile(rows, outputs, steps, warps, ahead)


@lru_cache(maxsize=4096)
def sliced_packed(problem: Product, device: Device) -> Best[Product] | Refusal:
    """The best tile for a problem; refused above 16 rows."""
    if problem.rows > MOST_ROWS:
        return Refusal(f"{problem.rows} rows, a tile holds up to {MOST_ROWS}")
    return best(space(padded_rows(problem.rows)), problem, device)
