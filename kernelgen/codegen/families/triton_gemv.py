"""Owns the product of one row: weights stream through registers, vector units multiply."""

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
from kernelgen.codegen.families.triton_time import LATENCY_US, Demand, Grid, Timing, timing
from kernelgen.hw.device import Device
from kernelgen.planner.family import Refusal

# Fitted to 649 tiles of five models on one H200 (2026-12-01), with the constants of waves.
_ROUND_US = 0.19
"""from one round of loads of a block to the next, while others load too"""
_SHARE_US = 0.16
"""more for a round whose row passes through shared memory"""
_PREPARE_US = 0.05
"""more for a round whose row is prepared"""
_FINISH_US = 0.011
"""for each sum of a tile: over threads, and stored"""
_LOADED = 8
"""weights that a thread loads at a time"""
_PREPARING = 24
"""registers of a thread for a row that is prepared step by step"""
_MOST_STORED = 64
"""weights of a tile that a thread takes: more has not been better anywhere"""


@dataclass(frozen=True)
class GemvTile:
    """A tile is `outputs` columns. With `blocks` 0 each block computes one and walks K in steps of
    `depth`; else so many blocks keep the whole row in registers and share the tiles. A row that is
    longer than `depth` is kept in two pieces: no power of two wastes registers on it.
    """

    outputs: int
    depth: int
    warps: int
    blocks: int

    @property
    def keeps_row(self) -> bool:
        """Whether blocks take one tile after the other."""
        return self.blocks > 0

    def rest(self, k: int) -> int:
        """Side of the second piece of a kept row of `k` elements; 0 where one holds it."""
        return next_power_of_two(k - self.depth) if self.keeps_row and self.depth < k else 0

    def footprint(self, problem: Product) -> Footprint:
        """Registers: the weights of a step as stored; with more steps those of the next, too, and
        one float32 sum for each; or those of the next tile and the row.
        """
        threads = self.warps * WARP
        depth = self.depth + self.rest(problem.k)
        stored = self.outputs * problem.most_matrices * depth / threads
        words = stored * problem.weight_bits / 32
        held = words
        if self.keeps_row:
            held = 2 * words + depth / threads
        elif self.depth < problem.k:
            held = 2 * words + stored + (_PREPARING if problem.prep else 0)
        registers = frame_registers(held)
        return Footprint(self.warps, registers, shared_bytes=self.warps * 128)

    def problems(self, problem: Product, device: Device) -> tuple[str, ...]:
        """Limits of the block, and steps that no row fills."""
        found = list(self.footprint(problem).problems(device))
        tiles = problem.tiles(self.outputs)
        rest = self.rest(problem.k)
        if self.keeps_row and (rest >= self.depth or self.blocks >= tiles):
            found.append(f"no rows of {problem.k} kept by {self.blocks} blocks for {tiles} tiles")
        if rest and problem.lead_us:
            found.append("a statistic of both pieces is known too late")
        if self.depth * problem.weight_bits < self.warps * WARP * 128 // self.outputs:
            found.append(Wasteful("less than 16 bytes of weights for each thread and step"))
        depth = self.depth + rest
        if self.outputs * problem.most_matrices * depth > _MOST_STORED * self.warps * WARP:
            found.append(Wasteful(f"more than {_MOST_STORED} weights for each thread and step"))
        if self.depth > max(256, next_power_of_two(problem.k)):
            found.append(Wasteful(f"a step is longer than the row of {problem.k}"))
        return tuple(found)

    def time(self, problem: Product, device: Device) -> Timing:
        """Weights from memory once; every block reads (and prepares) all rows."""
        tiles, footprint = problem.tiles(self.outputs), self.footprint(problem)
        blocks = min(tiles, self.blocks or tiles)
        weights = problem.weight_rows * problem.k
        traffic = problem.row_traffic(blocks, problem.rows, footprint, device)
        grid = Grid(
            blocks=blocks,
            footprint=footprint,
            steps=self._steps(problem) * ceil_div(tiles, blocks),
            chain_us=self._chain_us(problem, ceil_div(tiles, blocks)),
            early_us=LATENCY_US,
            lead_us=problem.lead_us,
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=weights * problem.weight_bits // 8 + traffic,
            vector_ops=weights * (1 + problem.rows) + blocks * problem.rows * problem.k,
            serial_ops=problem.prep_ops(blocks, problem.rows),
        )
        return timing(grid, demand, device)

    def _steps(self, problem: Product) -> int:
        """Rounds of loads for one tile."""
        return 1 if self.keeps_row else ceil_div(problem.k, self.depth)

    def _chain_us(self, problem: Product, tiles: int) -> float:
        """Rounds of loads of one block. Warps that need the same part of the row get it through
        shared memory, with a barrier at each step.
        """
        finish = _FINISH_US * self.outputs * problem.most_matrices
        steps = self._steps(problem)
        if steps == 1:
            return (tiles if self.keeps_row else 1) * (_ROUND_US + finish)
        shares = self.depth < self.warps * WARP * _LOADED
        step = _ROUND_US + _SHARE_US * shares + _PREPARE_US * (problem.prep is not None)
        return steps * step + finish

    def masks(self, problem: Product) -> tuple[str, ...]:
        """The last step of the row and the last block of each matrix."""
        return problem.masks(1, self.outputs, self.depth)


def space(device: Device) -> Iterator[GemvTile]:
    """All tiles, wide steps first; kept rows as two, four or eight blocks a multiprocessor."""
    for depth in (2048, 1024, 4096, 512, 256, 8192, 16384):
        for warps in (4, 2, 8, 1, 16):
            for outputs in (2, 4, 1, 8, 16):
                yield GemvTile(outputs, depth, warps, 0)
                for each in (2, 4, 8):
                    yield GemvTile(outputs, depth, warps, each * device.units)


@lru_cache(maxsize=4096)
def gemv(problem: Product, device: Device) -> Best[Product] | Refusal:
    """The best tile for a problem; refused for more than one row."""
    if problem.rows > 1:
        return Refusal(f"{problem.rows} rows, which tensor cores multiply at the cost of one")
    return best(space(device), problem, device)
