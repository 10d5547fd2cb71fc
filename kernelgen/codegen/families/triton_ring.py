"""Owns the product of 2 to 64 rows whose weights are asked for before the wait."""

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
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.hw.device import Device
from kernelgen.planner.family import Refusal

MOST_ROWS = 64
WARPS = 4
"""of a block: one group that multiplies"""
CLUSTERS = (2, 4, 1, 8)
_LEAST_ROWS = 8  # the short side of a product from shared memory
_LINE = 64
"""elements of the 128 bytes that one line of shared memory holds"""
_PIECE = 16
"""columns of which a warp holds the sums: a block finishes one piece or several"""
_BARRIER_BYTES = 8
_ALIGNED = 16
"""bytes that a thread sends at once: what is exchanged begins at a multiple"""
_EXCHANGE_US, _BLOCK_EXCHANGE_US = 0.5, 0.2
"""two barriers of a cluster; stores into a neighbour's memory and sums of what came, each block"""
_BLOCK_GB_S = 40.0
"""what one block draws: 96 of them took 15 µs for 50 MB, 192 took 12 (H200, 2026-12-01)"""
_PREPARE_US = 0.4
"""rows through registers into shared memory, a barrier"""
_THROUGH_OPS = 5
_TENSOR_SHARE = 0.3
_BANDWIDTH_SHARE = 0.95


def padded_rows(rows: int) -> int:
    """Rows that the tensor cores see."""
    return max(_LEAST_ROWS, next_power_of_two(rows))


@dataclass(frozen=True)
class RingTile:
    """The `cluster` blocks of a cluster compute `outputs` columns of all rows, each over its part
    of K in steps of `depth`; then each finishes its share of the columns.

    `stages` steps are on their way at a time. Those of the weights are asked for before the wait:
    they come while the kernel before still runs, and take no registers.
    """

    rows: int
    outputs: int
    depth: int
    stages: int
    cluster: int
    blocks: int
    """clusters that take tile after tile; 0: one for each tile"""

    def steps(self, problem: Product) -> int:
        """Steps of a block over its part of K."""
        return ceil_div(problem.k, self.depth * self.cluster)

    def clusters(self, tiles: int) -> int:
        """Of the grid."""
        return min(tiles, self.blocks or tiles)

    def exchange_bytes(self, matrices: int, statistics: int) -> int:
        """Shared memory for float32 sums of a block's own columns, and statistics of all rows, one
        from each block of the cluster.
        """
        if self.cluster == 1:
            return 0
        return 4 * self.rows * (matrices * self.outputs + self.cluster * statistics) + _ALIGNED

    def footprint(self, problem: Product) -> Footprint:
        """Shared memory: the ring, its barriers, and what is exchanged. Registers: sums."""
        wide = self.outputs * problem.most_matrices
        line = self.depth * problem.weight_bits // 8
        ring = self.stages * (wide * line + _BARRIER_BYTES)
        rows = (self.steps(problem) if problem.prep else self.stages) * self.rows * line
        statistics = problem.prep.summed if problem.prep else 0
        exchange = self.exchange_bytes(problem.most_matrices, statistics)
        registers = frame_registers(wide * self.rows / (WARPS * WARP))
        return Footprint(WARPS, registers, ring + rows + exchange)

    def problems(self, problem: Product, device: Device) -> tuple[str, ...]:
        """Limits of the block and of clusters, and places of the ring that nothing would fill."""
        found = list(self.footprint(problem).problems(device))
        if self.cluster not in CLUSTERS:
            found.append(f"clusters of {self.cluster} blocks")
        if self.rows != padded_rows(problem.rows):
            found.append(f"{problem.rows} rows in a tile of {self.rows}")
        if self.outputs < _PIECE * self.cluster:
            found.append(f"{self.outputs} columns for {self.cluster} blocks to finish")
        if self.outputs % _LINE or self.depth % _LINE:
            found.append(f"sides of {self.outputs} and {self.depth}, products take {_LINE}")
        tiles = problem.tiles(self.outputs)
        steps = self.steps(problem) * ceil_div(tiles, self.clusters(tiles))
        if self.stages > steps or self.stages < min(2, steps):
            found.append(f"{self.stages} places for {steps} steps")
        if self.blocks >= tiles:
            found.append(f"{self.blocks} clusters for {tiles} tiles")
        if self.depth * self.cluster >= 2 * max(problem.k, _LINE * self.cluster):
            found.append(Wasteful(f"blocks without a part of K = {problem.k}"))
        return tuple(found)

    def time(self, problem: Product, device: Device) -> Timing:
        """Weights from memory once; each block reads its part of all rows."""
        tiles = problem.tiles(self.outputs)
        weights = problem.weight_rows * problem.k
        grid = Grid(
            blocks=tiles * self.cluster,
            footprint=self.footprint(problem),
            steps=self.steps(problem),
            in_flight=max(1, self.stages - 1),
            step_us=(self.outputs * problem.most_matrices + self.rows)
            * self.depth
            * problem.weight_bits
            / (8 * _BLOCK_GB_S * 1e3),
            early_us=LATENCY_US,
            lead_us=_PREPARE_US if problem.prep else 0.0,
            tail_us=_EXCHANGE_US + self.cluster * _BLOCK_EXCHANGE_US if self.cluster > 1 else 0.0,
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=weights * problem.weight_bits // 8 + tiles * problem.row_bytes,
            serial_ops=problem.prep_ops(tiles, self.rows, through=_THROUGH_OPS),
            vector_ops=problem.weight_rows * problem.rows * problem.finish_ops,
            tensor_flops=2.0 * weights * self.rows,
            tensor_dtype=problem.math,
            tensor_share=_TENSOR_SHARE,
            bandwidth_share=_BANDWIDTH_SHARE,
        )
        return timing(grid, demand, device)

    def masks(self, problem: Product) -> tuple[str, ...]:
        """Rows are padded to the tensor cores' side; the last step and the last block may be partly
        empty.
        """
        return problem.masks(self.rows, self.outputs, self.depth)


def space(rows: int) -> Iterator[RingTile]:
    """Tiles for so many padded rows; narrow ones, of which all blocks have one, measure best."""
    for depth in (128, 64):
        for cluster in CLUSTERS[:3]:
            for stages in (6, 8, 4, 11, 3, 2, 1):
                yield RingTile(rows, _LINE, depth, stages, cluster, 0)


@lru_cache(maxsize=4096)
def ring(problem: Product, device: Device) -> Best[Product] | Refusal:
    """The best tile for a problem; refused above 64 rows, for one, and off sm_90."""
    if not device.has("wgmma"):
        return Refusal(f"{device.sm_name} does not multiply from shared memory in this way")
    if problem.rows > MOST_ROWS or problem.rows == 1:
        return Refusal(f"{problem.rows} rows, a tile holds 2 to {MOST_ROWS}")
    return best(space(padded_rows(problem.rows)), problem, device)
