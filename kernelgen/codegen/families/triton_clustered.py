"""Owns the product of 2 to 64 rows by clusters: weights wait in blocks that share K and add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.triton_block import WARP, Footprint, ceil_div, frame_registers
from kernelgen.codegen.families.triton_choice import Best, Wasteful, best
from kernelgen.codegen.families.triton_product import Product
from kernelgen.codegen.families.triton_sliced import padded_rows
from kernelgen.codegen.families.triton_time import (
    LATENCY_US,
    UNIT_GB_S,
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.hw.device import Device
from kernelgen.planner.family import Refusal

MOST_ROWS = 64
CLUSTERS = (1, 2, 4, 8, 3, 6)
# Fitted to 104 rows of one H200 (2026-12-01): models of 0.6 to 8 billion weights, 8 to 64 rows.
_EXCHANGE_US = 1.6
"""two barriers of a cluster, stores into a neighbour's memory, sums of what came"""
_TENSOR_SHARE = 0.5
_BANDWIDTH_SHARE = 0.75
"""of the read bandwidth: one step of weights is on its way, and none while its products run"""
_THROUGH_OPS = 16
"""instructions for an element of a row that is prepared: through registers to shared memory"""
_MOST_WAITING = 128
"""registers of a thread with weights of one step on their way: more spill"""


@dataclass(frozen=True)
class ClusteredTile:
    """The `cluster` blocks of a cluster compute `outputs` columns of all rows, each over its part
    of K in steps of `depth`; then each finishes its share of the columns.

    The weights of a block's first step come while the kernel before still runs. A block reads only
    its part of the rows, which is what limits products of many rows: 64 rows of 2,048 are 256 KiB.
    """

    rows: int
    outputs: int
    depth: int
    cluster: int
    warps: int

    def steps(self, problem: Product) -> int:
        """Steps of a block over its part of K."""
        return ceil_div(ceil_div(problem.k, self.depth), self.cluster)

    @property
    def finishing(self) -> int:
        """Blocks of a cluster that finish columns: a power of two."""
        return 1 << (self.cluster.bit_length() - 1)

    def exchange_bytes(self, matrices: int, statistics: int) -> int:
        """Shared memory for float32 sums of a block's own columns, and statistics of all rows, one
        from each block of the cluster.
        """
        if self.cluster == 1:
            return 0
        columns = matrices * self.outputs // self.finishing
        return 4 * self.cluster * self.rows * (columns + statistics)

    def footprint(self, problem: Product) -> Footprint:
        """Shared memory: rows and weights of a step, and what is exchanged. Registers: sums, and
        weights on their way.
        """
        threads, wide = self.warps * WARP, self.outputs * problem.most_matrices
        sums = wide * self.rows / threads
        ahead = self._waiting(problem) * (2 if self.steps(problem) > 1 else 1)
        rows = self.rows * self.depth * problem.row_bits // 8
        weights = wide * self.depth * problem.weight_bits // 8
        statistics = problem.prep.summed if problem.prep else 0
        exchange = self.exchange_bytes(problem.most_matrices, statistics)
        registers = frame_registers(sums + ahead)
        return Footprint(self.warps, registers, rows + weights + exchange)

    def _waiting(self, problem: Product) -> float:
        """Registers of a thread with the weights of one step."""
        wide = self.outputs * problem.most_matrices
        return wide * self.depth * problem.weight_bits / 32 / (self.warps * WARP)

    def problems(self, problem: Product, device: Device) -> tuple[str, ...]:
        """Limits of the block and of clusters, and blocks that would have nothing to do."""
        found = list(self.footprint(problem).problems(device))
        if problem.math != "bfloat16":
            found.append(f"{problem.math} rows: tensor cores multiply bfloat16")
        if self.cluster not in CLUSTERS:
            found.append(f"clusters of {self.cluster} blocks")
        if self.cluster > 1 and not device.has("cluster"):
            found.append(f"{device.sm_name} has no clusters")
        if self.rows != padded_rows(problem.rows):
            found.append(f"{problem.rows} rows in a tile of {self.rows}")
        if self.outputs < 2 * self.finishing:
            found.append(f"{self.outputs} columns for {self.finishing} blocks to finish")
        if self._waiting(problem) > _MOST_WAITING:
            found.append(f"{self._waiting(problem):g} registers of a thread with weights")
        if self.depth * self.cluster >= 2 * max(problem.k, 16 * self.cluster):
            found.append(Wasteful(f"blocks without a part of K = {problem.k}"))
        return tuple(found)

    def time(self, problem: Product, device: Device) -> Timing:
        """Weights from memory once; each block reads (and prepares) its part of all rows."""
        tiles, footprint = problem.tiles(self.outputs), self.footprint(problem)
        weights = problem.weight_rows * problem.k
        traffic = problem.row_traffic(tiles, problem.rows, footprint, device)
        # Its part of the rows, through registers to shared memory, before the first product.
        part = self.rows * min(self.depth, problem.k) * problem.read_bits / 8
        steps = self.steps(problem)
        grid = Grid(
            blocks=tiles * self.cluster,
            footprint=footprint,
            steps=steps,
            in_flight=1,
            step_us=part / (UNIT_GB_S * 1e3),
            early_us=LATENCY_US,
            lead_us=problem.lead_us,
            tail_us=_EXCHANGE_US if self.cluster > 1 else 0.0,
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=weights * problem.weight_bits // 8 + 2 * traffic,
            vector_ops=problem.weight_rows * problem.rows * problem.finish_ops,
            serial_ops=problem.prep_ops(tiles, self.rows, through=_THROUGH_OPS),
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


def space(rows: int) -> Iterator[ClusteredTile]:
    """All tiles for so many padded rows."""
    for outputs in (64, 32, 128):
        for depth in (1024, 512, 256):
            for cluster in CLUSTERS:
                for warps in (4, 8):
                    yield ClusteredTile(rows, outputs, depth, cluster, warps)


@lru_cache(maxsize=4096)
def clustered(problem: Product, device: Device) -> Best[Product] | Refusal:
    """The best tile for a problem; refused above 64 rows and for one, which needs no padding."""
    if problem.rows > MOST_ROWS or problem.rows == 1:
        return Refusal(f"{problem.rows} rows, a tile holds 2 to {MOST_ROWS}")
    return best(space(padded_rows(problem.rows)), problem, device)
