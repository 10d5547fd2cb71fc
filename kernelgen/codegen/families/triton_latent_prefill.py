"""Owns prompt attention over latent rows: tiles of queries and heads walk what they see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.scan_roles import ApartRoles, alone_roles
from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, Wasteful, best, given, masked
from kernelgen.codegen.families.triton_family import Quote
from kernelgen.codegen.families.triton_time import LATENCY_US, Demand, Grid, Timing, timing
from kernelgen.hw.device import Device
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.ops import LatentAttention
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

_SHARE = 0.34
"""of the large product's rate that scores and sums reach together: 8,192 tokens, 32 heads, 8.7 ms
with 64 rows and 64 tokens on one H200 (2026-12-01)"""
_SHORT = 0.75
"""of that for every halving of the tokens of a step below 64, and back: 11.7 ms with 32"""
_LEAST_SIDE = 16


@dataclass(frozen=True)
class WalkProblem:
    """Attention of a prompt over latent rows, as numbers."""

    queries: int
    heads: int
    rank: int
    beside: int
    cache_bits: int
    pairs: int
    """query-row pairs of one head, causal"""
    visible: int
    bytes: int
    flops: int


def heads_of_a_block(heads: int, rows: int) -> int:
    """As many heads as divide all of them and fit the rows of a block."""
    return next(n for n in range(min(heads, rows), 0, -1) if heads % n == 0)


@dataclass(frozen=True)
class WalkTile:
    """A block computes `rows` pairs of query and head, `tokens` latent rows at a time."""

    rows: int
    tokens: int
    stages: int
    warps: int

    def queries(self, problem: WalkProblem) -> int:
        """Queries of a block."""
        return self.rows // heads_of_a_block(problem.heads, self.rows)

    def footprint(self, problem: WalkProblem) -> Footprint:
        """Shared memory: queries, `stages` steps of rows, weights of a step. Registers: sums."""
        size = problem.cache_bits // 8
        rank = next_power_of_two(problem.rank)
        width = rank + max(_LEAST_SIDE, next_power_of_two(problem.beside))
        shared = (self.rows + self.stages * self.tokens) * width * size
        shared += self.rows * self.tokens * size
        held = self.rows * (rank + 1.5 * self.tokens) / (self.warps * WARP)
        return Footprint(self.warps, frame_registers(1.1 * held + 16), shared)

    def problems(self, problem: WalkProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block, warps without rows of their own."""
        found = list(self.footprint(problem).problems(device))
        if self.rows < 4 * self.warps:
            found.append(f"{self.warps} warps have no 4 rows each")
        if self.rows > max(_LEAST_SIDE, next_power_of_two(problem.queries * problem.heads)):
            found.append(Wasteful("more rows than there are"))
        return tuple(found)

    def time(self, problem: WalkProblem, device: Device) -> Timing:
        """Arithmetic of whole tiles. The last block of a causal prompt walks twice the mean."""
        queries = self.queries(problem)
        groups = problem.heads // heads_of_a_block(problem.heads, self.rows)
        blocks = ceil_div(problem.queries, queries) * groups
        steps = ceil_div(ceil_div(problem.pairs, problem.queries) + queries // 2, self.tokens)
        walked = blocks * steps * self.tokens
        rank = next_power_of_two(problem.rank)
        width = rank + max(_LEAST_SIDE, next_power_of_two(problem.beside))
        grid = Grid(
            blocks=blocks,
            footprint=self.footprint(problem),
            steps=steps,
            in_flight=max(1, self.stages - 1),
            early_us=LATENCY_US,
            lead_us=LATENCY_US,
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=walked * (problem.rank + problem.beside) * problem.cache_bits // 8,
            vector_ops=6.0 * walked * self.rows,
            tensor_flops=2.0 * walked * self.rows * (width + rank),
            tensor_dtype="bfloat16" if problem.cache_bits <= 16 else "float32",
            tensor_share=_SHARE * min(1.0, self.rows / 64) * _SHORT ** math.log2(64 / self.tokens),
            longest=problem.visible * problem.queries / problem.pairs,
        )
        return timing(grid, demand, device)

    def masks(self, problem: WalkProblem) -> tuple[str, ...]:
        """The diagonal and what does not divide."""
        used = self.queries(problem) * heads_of_a_block(problem.heads, self.rows)
        return (
            "masked entries: the diagonal",
            *masked("queries", problem.queries, self.queries(problem)),
            *masked("rows", used, self.rows),
        )


def space() -> Iterator[WalkTile]:
    """All tiles."""
    for rows in (64, 128, 32, 16):
        for tokens in (64, 32, 128, 16):
            for stages in (2, 1, 3):
                for warps in (8, 4, 16, 2):
                    yield WalkTile(rows, tokens, stages, warps)


@lru_cache(maxsize=1024)
def walk(problem: WalkProblem, device: Device) -> Best[WalkProblem] | Refusal:
    """The best tile for a problem."""
    return best(space(), problem, device)


def latent_prefill_roles(region: Region, phase: str) -> ApartRoles | Refusal | None:
    """Attention over latent rows in a prompt; None in a decode step."""
    if phase == "decode":
        return None
    return alone_roles(region, LatentAttention, Trait.LATENT)


def quote_latent_prefill(
    region: Region,
    roles: ApartRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile."""
    op, (a, _q, state, _rows) = roles.anchor.op, roles.anchor.inputs
    assert isinstance(op, LatentAttention)
    inner, cache = region.value(a).type, region.value(state).type
    problem = WalkProblem(
        queries=sizes.tokens,
        heads=inner.static_elements // inner.row_width,
        rank=inner.row_width,
        beside=cache.row_width - inner.row_width,
        cache_bits=cache.dtype.bits,
        pairs=op.pairs(sizes),
        visible=max(1, sizes.context),
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
    )
    found = walk(problem, device)
    if choice is not None:
        found = given(WalkTile, choice, problem, device)
    if isinstance(found, Refusal):
        return found
    return Quote(found, problem.bytes, problem.flops, problem)
