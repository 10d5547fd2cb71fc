"""Owns the choice of a token: candidates of each part of the vocabulary, then one among them."""

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
    UNIT_GB_S,
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

CANDIDATE_BYTES = 16
"""of each row and part: best logit with and without noise, each with its token"""
NOISE_OPS = 60
"""float32 and integer instructions for one logit: scale, hash of (seed, position, token), two
logarithms, comparison"""
_THRESHOLD_PASSES = 3
"""times that a row with top-k or top-p reads its logits again: two to bound the threshold by
digits, one to choose"""


@dataclass(frozen=True)
class SampleProblem:
    """Logits as numbers."""

    rows: int
    vocabulary: int
    bytes: int
    flops: int


@dataclass(frozen=True)
class SampleTile:
    """A block finds the best candidate of `columns` logits of one row."""

    columns: int
    warps: int

    def footprint(self, problem: SampleProblem) -> Footprint:
        """Registers: logits with their noise."""
        return Footprint(self.warps, frame_registers(3 * self.columns / (self.warps * WARP)), 1024)

    def problems(self, problem: SampleProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block."""
        return self.footprint(problem).problems(device)

    def time(self, problem: SampleProblem, device: Device) -> Timing:
        """Logits once; every logit gets its noise."""
        logits = problem.rows * problem.vocabulary
        grid = Grid(
            blocks=problem.rows * ceil_div(problem.vocabulary, self.columns),
            footprint=self.footprint(problem),
            steps=1,
        )
        demand = Demand(memory_bytes=problem.bytes, vector_ops=float(NOISE_OPS * logits))
        return timing(grid, demand, device)

    def masks(self, problem: SampleProblem) -> tuple[str, ...]:
        """The last part of the vocabulary."""
        return masked("columns", problem.vocabulary, self.columns)


def choose_pass(rows: int, vocabulary: int, parts: int, device: Device) -> Pass:
    """The second kernel: one block a row reads its candidates; rows with top-k or top-p read their
    logits again.
    """
    candidates = rows * parts * CANDIDATE_BYTES
    us = device.boundary_us + NEAR_LATENCY_US + REDUCE_US
    again = _THRESHOLD_PASSES * vocabulary * 4 / (UNIT_GB_S * 1e3)
    added = f"top-k or top-p in any row add about {again:.0f} µs"
    why = f"{parts} candidates a row; {added}"
    return Pass("choose", candidates, us + candidates / (device.read_gb_s * 1e3), why)


def space() -> Iterator[SampleTile]:
    """All tiles."""
    for columns in (2048, 4096, 1024, 8192):
        for warps in (4, 8):
            yield SampleTile(columns, warps)


@lru_cache(maxsize=256)
def sample(problem: SampleProblem, device: Device) -> Best[SampleProblem] | Refusal:
    """The best tile for a problem."""
    return best(space(), problem, device)


def sample_roles(region: Region, phase: str) -> Region | Refusal | None:
    """The choice alone; None without one."""
    if not region.with_trait(Trait.SAMPLE):
        return None
    if len(region.nodes) > 1:
        return Refusal("the choice reads logits that another kernel has finished", barrier=True)
    return region


def quote_sample(region: Region, roles: Region, sizes: Sizes, device: Device) -> Quote | Refusal:
    """Candidates of each part, then the choice."""
    node = region.nodes[0]
    logits = region.value(node.inputs[0]).type
    problem = SampleProblem(
        rows=logits.elements(sizes) // logits.row_width,
        vocabulary=logits.row_width,
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
    )
    found = sample(problem, device)
    if isinstance(found, Refusal):
        return found
    tile = found.tile
    assert isinstance(tile, SampleTile)
    parts = ceil_div(problem.vocabulary, tile.columns)
    most = logits.elements(sizes.capacity) // logits.row_width
    return Quote(
        best=found,
        bytes=problem.bytes,
        flops=problem.flops,
        problem=problem,
        scratch_bytes=most * parts * CANDIDATE_BYTES,
        passes=(choose_pass(problem.rows, problem.vocabulary, parts, device),),
    )
