"""Owns decode over latent rows: one row a token for all heads, the cache split over blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from kernelgen.codegen.families.scan_roles import ApartRoles, alone_roles
from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, Tile, best, given, masked
from kernelgen.codegen.families.triton_family import LEAST_BYTES, Quote
from kernelgen.codegen.families.triton_time import (
    LATENCY_US,
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
from kernelgen.ops import LatentAttention
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Pass, Refusal
from kernelgen.planner.network import Region

PAGE = 16
_PAGES_SHARE = 0.92  # of the read bandwidth, as for keys and values
_STEP_US, _TOKEN_US = 1.8, 0.08
"""scores, softmax and sums of a step and of each of its entries: a chain. Fitted to one H200
(2026-12-01): 32 heads, 32 requests of 16,384 rows, 279 µs with 32 rows a step"""
_LEAST_HEADS = 16  # the short side of a tensor core product
_MOST_SPLITS = 128
_WARPGROUP_ROWS = 64  # of a product that reads both sides from shared memory
_AT_ONCE = 8  # latent columns that a thread copies
_FULL = 0.9
_TENSOR_SHARE = 0.45
"""of the large product's rate that scores and sums reach together. Assumed."""


@dataclass(frozen=True)
class LatentProblem:
    """Attention of one new token a request over latent rows, as numbers."""

    requests: int
    heads: int
    rank: int
    beside: int
    cache_bits: int
    visible: int
    bytes: int
    flops: int

    def reading(self, share: float) -> LatentProblem:
        """The same requests with a context of another length."""
        visible = max(1, round(self.visible * share))
        entries = self.requests * (visible - self.visible)
        more = entries * (self.rank + self.beside) * self.cache_bits // 8
        return replace(self, visible=visible, bytes=max(1, self.bytes + more))


@dataclass(frozen=True)
class LatentTile:
    """A block reads one of at most `splits` equal parts of a request's rows, `tokens` a step,
    `least` or more, for `heads` heads at a time.

    A second launch merges the parts of a request, where its length makes it more than one.
    """

    tokens: int
    heads: int
    splits: int
    least: int
    stages: int
    warps: int

    def part(self, problem: LatentProblem) -> int:
        """Entries of one block, whole steps."""
        equal = ceil_div(ceil_div(problem.visible, self.splits), self.tokens) * self.tokens
        return max(equal, self.least)

    def parts(self, problem: LatentProblem) -> int:
        """Blocks of a request and group of heads that have work."""
        return ceil_div(problem.visible, self.part(problem))

    def groups(self, problem: LatentProblem) -> int:
        """Blocks that each read all rows, for heads of their own."""
        return ceil_div(problem.heads, self.heads)

    def footprint(self, problem: LatentProblem) -> Footprint:
        """Shared memory: `stages` steps of rows, one more where warpgroups multiply (64 rows), and
        the queries. Registers: sums of all heads, scores of a step, where a thread's rows are."""
        size = problem.cache_bits // 8
        width = next_power_of_two(problem.rank) + max(16, next_power_of_two(problem.beside))
        step = self.tokens * width * size
        threads = self.warps * WARP
        held = self.heads * next_power_of_two(problem.rank) + 2 * self.heads * self.tokens
        places = self.tokens * next_power_of_two(problem.rank) // _AT_ONCE
        per_thread = (1.3 * held + 5 * places) / threads + 16
        buffers = self.stages + (self.tokens >= _WARPGROUP_ROWS)
        shared = buffers * step + self.heads * (width + self.tokens) * size
        return Footprint(self.warps, frame_registers(per_thread), shared)

    def problems(self, problem: LatentProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block, a step longer than what is read, heads that nobody has, and too few
        blocks for a long context."""
        found = list(self.footprint(problem).problems(device))
        if self.tokens > max(2 * PAGE, next_power_of_two(problem.visible)):
            found.append(f"a step is longer than the {problem.visible} visible entries")
        if self.heads > max(_LEAST_HEADS, next_power_of_two(problem.heads)):
            found.append(f"a block for more than the {problem.heads} heads")
        if self.tokens < 4 * self.warps:
            found.append(f"{self.warps} warps have no 4 entries each")
        blocks = problem.requests * self.groups(problem) * self.splits
        if blocks < _FULL * device.units and self.splits < _MOST_SPLITS:
            found.append(f"{blocks} blocks leave multiprocessors idle in any context")
        return tuple(found)

    def partial_bytes(self, problem: LatentProblem) -> int:
        """float32 results of all splits and the logarithms of their denominators."""
        if self.splits == 1:
            return 0
        return problem.requests * problem.heads * self.splits * (problem.rank + 1) * 4

    def time(self, problem: LatentProblem, device: Device) -> Timing:
        """Rows from memory once for each group of heads."""
        parts, groups = self.parts(problem), self.groups(problem)
        pairs = problem.requests * problem.visible * groups * self.heads
        width = next_power_of_two(problem.rank) + max(16, next_power_of_two(problem.beside))
        grid = Grid(
            blocks=problem.requests * groups * parts,
            footprint=self.footprint(problem),
            steps=ceil_div(self.part(problem), self.tokens),
            in_flight=max(1, self.stages - 1),
            step_us=_STEP_US + self.tokens * _TOKEN_US,
            early_us=LATENCY_US,
            lead_us=NEAR_LATENCY_US + _STEP_US,
            tail_us=REDUCE_US,
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=groups * problem.bytes + self.partial_bytes(problem) * parts // self.splits,
            vector_ops=14.0 * pairs,
            tensor_flops=2.0 * pairs * (width + next_power_of_two(problem.rank)),
            tensor_dtype="bfloat16" if problem.cache_bits <= 16 else "float32",
            tensor_share=_TENSOR_SHARE,
            bandwidth_share=_PAGES_SHARE,
        )
        return timing(grid, demand, device)

    def masks(self, problem: LatentProblem) -> tuple[str, ...]:
        """Lengths are known to the step only: the last page of a request is always masked."""
        return (
            "masked entries: the last page of each request",
            *masked("heads", problem.heads, self.heads),
            *masked("latent columns", problem.rank, next_power_of_two(problem.rank)),
        )

    def merge(self, problem: LatentProblem, device: Device) -> Pass | None:
        """The second launch; None where a request is never divided."""
        if self.splits == 1:
            return None
        parts = self.parts(problem)
        moved = problem.requests * problem.heads * parts * (problem.rank + 1) * 4
        each = parts * problem.rank * 4 / (UNIT_GB_S * 1e3)
        us = device.boundary_us + REDUCE_US + (each if parts > 1 else 0.0)
        return Pass("merge", moved if parts > 1 else 0, us, "a head of a request adds up its parts")


def space() -> Iterator[LatentTile]:
    """All tiles, those without a merge first."""
    for splits in (1, 2, 4, 8, 16, 32, 64, _MOST_SPLITS):
        for tokens in (64, 32, 128):
            for heads in (32, 16, 64):
                for stages in (2, 1, 3):
                    for warps in (8, 4):
                        for steps in (1, 2, 4):
                            yield LatentTile(tokens, heads, splits, steps * tokens, stages, warps)


@lru_cache(maxsize=1024)
def latent(problem: LatentProblem, device: Device) -> Best[LatentProblem] | Refusal:
    """The best tile for a problem: at the planned context and at those far below and above it."""
    others = [(problem.reading(s), s) for s in (1 / 8, 8)]

    def elsewhere(tile: Tile[LatentProblem]) -> float:
        return sum(_whole(tile, p, device) / share for p, share in others) + (
            _whole(tile, problem, device) - tile.time(problem, device).us
        )

    return best(space(), problem, device, elsewhere)


def _whole(tile: Tile[LatentProblem], problem: LatentProblem, device: Device) -> float:
    """Both launches."""
    assert isinstance(tile, LatentTile)
    merge = tile.merge(problem, device)
    return tile.time(problem, device).us + (merge.us if merge else 0.0)


def latent_problem(region: Region, roles: ApartRoles, sizes: Sizes) -> LatentProblem:
    """The numbers of a matched region."""
    op, (a, _q, state, _rows) = roles.anchor.op, roles.anchor.inputs
    assert isinstance(op, LatentAttention)
    inner, cache = region.value(a).type, region.value(state).type
    return LatentProblem(
        requests=sizes.rows,
        heads=inner.static_elements // inner.row_width,
        rank=inner.row_width,
        beside=cache.row_width - inner.row_width,
        cache_bits=cache.dtype.bits,
        visible=max(1, sizes.context),
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
    )


def latent_decode_roles(region: Region, phase: str) -> ApartRoles | Refusal | None:
    """Attention over latent rows in a decode step; None in a prompt."""
    if phase != "decode":
        return None
    return alone_roles(region, LatentAttention, Trait.LATENT)


def quote_latent(
    region: Region,
    roles: ApartRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile with its partial results and its second launch."""
    problem = latent_problem(region, roles, sizes)
    found = latent(problem, device)
    if choice is not None:
        found = given(LatentTile, choice, problem, device)
    if isinstance(found, Refusal):
        return found
    tile = found.tile
    assert isinstance(tile, LatentTile)
    parts, merge = tile.parts(problem), tile.merge(problem, device)
    how = "one block reads all rows of a request"
    if parts > 1:
        how = f"{parts} blocks of {tile.part(problem)} rows, merged by a second launch"
    return Quote(
        best=found,
        bytes=problem.bytes,
        flops=problem.flops,
        problem=problem,
        scratch_bytes=max(LEAST_BYTES, tile.partial_bytes(problem)),
        passes=(merge,) if merge else (),
        notes=(how, f"up to {tile.splits} blocks a request in longer contexts"),
    )
