"""Owns the choice of a token: what a scan or a product has kept decides, noise reads logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, best, given, masked, tile_text
from kernelgen.codegen.families.triton_family import Quote
from kernelgen.codegen.families.triton_time import (
    NEAR_LATENCY_US,
    REDUCE_US,
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
LIST = 2048
"""logits among which one block finds a row's `SHORT_K` largest or fewer: all that reach a bound
taken from the maxima"""
SHORT_K = 256
"""the largest top-k whose rows choose from a list; larger ones try noisy candidates"""
SHORT, SHORTEST = 512, 128
"""logits of a list that are compared with each other, and what most lists have room in"""
CANDIDATES = 2048
"""noisy candidates that the blocks of a row hand on, at most"""
COUNTERS_OF_ROW = 3
"""int32 words for each logit row: the best candidate so far (64 bits), and a ticket"""
WARPS = 8
"""of a block: with 16 warps the choice has 128 registers a thread, and spills some"""
_FEWER_WARPS = 4
"""where even those spill: some assemblers keep a few registers more alive than others"""
WIDE = 2048
"""logits of a step where one block reads a whole row: enough loads in flight for its share of the
L2 cache"""
_SCAN_OPS = 12
"""instructions for one logit of the scan: its key, comparison, maximum of its group"""
_LIST_US = 10.0
"""a row with a small top-k, on one block: maxima, list, comparisons. Assumed."""
_MEASURE_US = 9.0
"""a row with top-p alone: one block adds up what ranks before the candidate. Assumed."""


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
    of a row chooses among what all have found. Rows with a small top-k need one block.
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

    def classes(self, vocabulary: int) -> int:
        """Classes of logits in a block's share: each hands on its best noisy candidate."""
        return min(self.columns, CANDIDATES // next_power_of_two(self.blocks(vocabulary)))

    def row_words(self, vocabulary: int, group: int = GROUP) -> int:
        """32-bit words of scratch for a row: candidates or the list, then the maximum and number
        of each group.
        """
        words = numbers_word(vocabulary, group) + ceil_div(vocabulary, group)
        return ceil_div(words, 32) * 32

    def footprint(self, problem: SampleProblem) -> Footprint:
        """That of the scan: a step's logits with their keys; four steps are loaded at a time."""
        held = 3 * self.columns / (self.warps * WARP)
        return Footprint(self.warps, frame_registers(held), 12 * self.columns)

    def problems(self, problem: SampleProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block, and blocks that wait for others to finish."""
        found = list(self.footprint(problem).problems(device))
        if problem.rows * self.parts > max(device.units, problem.rows):
            found.append(
                f"{problem.rows} rows in {self.parts} parts, {device.units} multiprocessors"
            )
        return tuple(found)

    def time(self, problem: SampleProblem, device: Device) -> Timing:
        """The scan: logits once."""
        logits = problem.rows * problem.vocabulary
        blocks = self.blocks(problem.vocabulary)
        grid = Grid(
            blocks=problem.rows * blocks,
            footprint=self.footprint(problem),
            steps=ceil_div(self.share(problem.vocabulary), self.columns),
            in_flight=3,
            tail_us=2 * REDUCE_US,
        )
        demand = Demand(memory_bytes=problem.bytes, vector_ops=float(_SCAN_OPS * logits))
        return timing(grid, demand, device)

    def masks(self, problem: SampleProblem) -> tuple[str, ...]:
        """The last step of the vocabulary."""
        return masked("columns", problem.vocabulary, self.columns)


MAXIMA_WORD = 2 * max(LIST, CANDIDATES)
"""where a row's scratch has the maxima of its groups: behind candidates, or list"""


def numbers_word(vocabulary: int, group: int) -> int:
    """Where a row's scratch has the numbers of chosen groups."""
    return MAXIMA_WORD + ceil_div(vocabulary, group)


def space() -> Iterator[SampleTile]:
    """All tiles."""
    for parts in (1, 2, 4, 8, 16, 32, 64, 128):
        for columns in (2048, 1024):
            yield SampleTile(columns, parts, WARPS)


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
    tile = SampleTile(columns=2048, parts=parts, warps=WARPS)
    refused = tile_text(tile) in device.refused_tiles
    return replace(tile, warps=_FEWER_WARPS) if refused else tile


def choose_pass(rows: int, device: Device) -> Pass:
    """The second kernel of a head: it reads one candidate a row."""
    us = device.boundary_us + NEAR_LATENCY_US
    why = "the largest logit of a row is known; noise, top-k or top-p reads logits again"
    return Pass("choose", rows * 8, us, why)


def sample_roles(region: Region, phase: str) -> Region | Refusal | None:
    """The choice alone; None without one."""
    if not region.with_trait(Trait.SAMPLE):
        return None
    if len(region.nodes) > 1:
        return Refusal("the choice reads logits that another kernel has finished", barrier=True)
    return region


def quote_sample(
    region: Region,
    roles: Region,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
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
    if choice is not None:
        found = given(SampleTile, choice, problem, device)
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
        counters=COUNTERS_OF_ROW * most,
        passes=(choose_pass(most, device),),
        notes=(
            f"a top-k of at most {SHORT_K} adds about {_LIST_US:.0f} µs, top-p alone"
            f" {_MEASURE_US:.0f} µs a look, all rows at a time",
        ),
    )
