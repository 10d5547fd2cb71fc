"""Owns the choice of a token: blocks scan parts of a row, the last one of the row chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.triton_block import WARP, Footprint, ceil_div, frame_registers
from kernelgen.codegen.families.triton_choice import Best, best, masked
from kernelgen.codegen.families.triton_family import Quote
from kernelgen.codegen.families.triton_time import (
    NEAR_LATENCY_US,
    REDUCE_US,
    TICKET_US,
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.hw.device import Device
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Pass, Refusal
from kernelgen.planner.network import Region

GROUP = 64
"""neighbouring logits that share one entry of a row's list of maxima"""
LIST = 4096
"""logits among which one block finds exact bounds: all that reach a bound taken from the maxima"""
NOISE_OPS = 60
"""float32 and integer instructions for one logit: scale, hash of (seed, position, token), two
logarithms, comparison"""
_SEARCH_US = 8.0
"""a row with top-k or top-p: maxima, list, and two searches by halving. Assumed."""


@dataclass(frozen=True)
class SampleProblem:
    """Logits as numbers."""

    rows: int
    vocabulary: int
    bytes: int
    flops: int


@dataclass(frozen=True)
class SampleTile:
    """A block scans one of at most `parts` parts of a row, `columns` logits a step; the last block
    of a row chooses among what all have found.
    """

    columns: int
    parts: int
    warps: int

    def share(self, vocabulary: int) -> int:
        """Logits of a block, whole steps."""
        return ceil_div(ceil_div(vocabulary, self.parts), self.columns) * self.columns

    def blocks(self, vocabulary: int) -> int:
        """Blocks of a row that have a share."""
        return ceil_div(vocabulary, self.share(vocabulary))

    def row_words(self, vocabulary: int) -> int:
        """32-bit words of scratch for a row: two of each block, maximum and number of each group,
        and the list of logits and tokens.
        """
        words = 2 * (self.blocks(vocabulary) + ceil_div(vocabulary, GROUP) + LIST)
        return ceil_div(words, 32) * 32

    def footprint(self, problem: SampleProblem) -> Footprint:
        """Registers: the list with its ranks, tokens and masses."""
        held = 6 * max(LIST, self.columns) / (self.warps * WARP)
        return Footprint(self.warps, frame_registers(held), 8 * self.columns)

    def problems(self, problem: SampleProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block, and blocks that wait for others to finish."""
        found = list(self.footprint(problem).problems(device))
        if problem.rows * self.parts > max(device.units, problem.rows):
            found.append(
                f"{problem.rows} rows in {self.parts} parts, {device.units} multiprocessors"
            )
        return tuple(found)

    def time(self, problem: SampleProblem, device: Device) -> Timing:
        """Logits once; every logit gets its noise."""
        logits = problem.rows * problem.vocabulary
        blocks = self.blocks(problem.vocabulary)
        grid = Grid(
            blocks=problem.rows * blocks,
            footprint=self.footprint(problem),
            steps=ceil_div(self.share(problem.vocabulary), self.columns),
            in_flight=3,
            tail_us=2 * REDUCE_US + (TICKET_US if blocks > 1 else 0.0),
        )
        demand = Demand(memory_bytes=problem.bytes, vector_ops=float(NOISE_OPS * logits))
        return timing(grid, demand, device)

    def masks(self, problem: SampleProblem) -> tuple[str, ...]:
        """The last step of the vocabulary."""
        return masked("columns", problem.vocabulary, self.columns)


def space() -> Iterator[SampleTile]:
    """All tiles."""
    for parts in (1, 2, 4, 8, 16, 32, 64, 128):
        for columns in (2048, 4096, 1024):
            for warps in (16, 8):
                yield SampleTile(columns, parts, warps)


@lru_cache(maxsize=256)
def sample(problem: SampleProblem, device: Device) -> Best[SampleProblem] | Refusal:
    """The best tile for a problem."""
    return best(space(), problem, device)


def choose_tile(rows: int, vocabulary: int, device: Device) -> SampleTile:
    """Blocks behind a product that keeps the largest logit of each row: only rows with a
    temperature are scanned.
    """
    parts = 1
    while 2 * parts * rows <= device.units and parts * 2048 < vocabulary:
        parts *= 2
    return SampleTile(columns=2048, parts=parts, warps=16)


def choose_pass(rows: int, device: Device) -> Pass:
    """The second kernel of a head: it reads one candidate a row."""
    us = device.boundary_us + NEAR_LATENCY_US
    why = "the largest logit of a row is known; noise, top-k or top-p reads the row again"
    return Pass("choose", rows * 8, us, why)


def sample_roles(region: Region, phase: str) -> Region | Refusal | None:
    """The choice alone; None without one."""
    if not region.with_trait(Trait.SAMPLE):
        return None
    if len(region.nodes) > 1:
        return Refusal("the choice reads logits that another kernel has finished", barrier=True)
    return region


def quote_sample(region: Region, roles: Region, sizes: Sizes, device: Device) -> Quote | Refusal:
    """The best tile; blocks are counted for all rows that a step may ask for."""
    node = region.nodes[0]
    logits = region.value(node.inputs[0]).type
    problem = SampleProblem(
        rows=logits.elements(sizes.capacity) // logits.row_width,
        vocabulary=logits.row_width,
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
    )
    found = sample(problem, device)
    if isinstance(found, Refusal):
        return found
    tile = found.tile
    assert isinstance(tile, SampleTile)
    most = logits.elements(sizes.capacity) // logits.row_width
    return Quote(
        best=found,
        bytes=problem.bytes,
        flops=problem.flops,
        problem=problem,
        scratch_bytes=most * tile.row_words(problem.vocabulary) * 4,
        counters=most,
        notes=(f"a row with top-k or top-p adds about {_SEARCH_US:.0f} µs, all rows at a time",),
    )
