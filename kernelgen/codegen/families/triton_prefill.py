"""Owns prompt attention: tiles of queries of one head walk the visible keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.roles import AttentionRoles, attention_roles
from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, best, given, masked
from kernelgen.codegen.families.triton_family import Quote
from kernelgen.codegen.families.triton_time import (
    LATENCY_US,
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.ops import Attention
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

# Measured on one H200 (2026-11-30), 32 heads of 128 on 8 cache heads; rows, tokens, stages, warps:
# µs for one prompt of 8,192 and for eight of 2,048. 128 64 2 4: 1,280 765; 128 128 2 8: 1,434 872;
# 128 64 3 8: 1,451 893; 64 64 2 4: 1,610 917; 128 64 2 8: 1,681 962; 64 128 2 4: 2,174 1,280.
# torch's flash kernel takes 904 and 508 in the same run.
_SHARE = 0.56
"""of the large product's rate that scores and sums reach together, where two blocks of 128 rows
share a multiprocessor and each multiplies while the other takes exponentials"""
_ELSEWHERE = 0.5
"""the same, for any tile, on other SMs. Assumed."""
_NARROW = 0.8
"""of that for every halving of the rows"""
_ALONE, _SHALLOW, _FEW = 0.88, 0.76, 0.84
"""of that for a block that is alone; for one with 128 or fewer keys in flight; with four warps"""
_SHORT = 0.85
"""of that for steps of fewer than 64 keys. Assumed."""
_MOST_REGISTERS = 255
_MOST_SPILLED = 72
"""registers of a thread that four warps with 128 rows may spill: they load and store about 30 words
a step and are yet the fastest tile of those above, as two such blocks fit a multiprocessor"""


@dataclass(frozen=True)
class PrefillProblem:
    """Attention of a prompt, as numbers."""

    queries: int
    heads: int
    kv_heads: int
    width: int
    cache_bits: int
    pairs: int
    """query-key pairs of one head, causal and window"""
    visible: int
    """entries that the last query reads"""
    window: bool
    staged: bool
    """whether tensor cores take operands from shared memory (from sm_90 on); else from registers"""
    wide: bool
    """whether it is four warps that multiply together (sm_90)"""
    bytes: int
    flops: int

    @property
    def group(self) -> int:
        """Query heads that share a cache head: they share a block."""
        return self.heads // self.kv_heads


def prefill_problem(
    region: Region, roles: AttentionRoles, sizes: Sizes, device: Device
) -> PrefillProblem:
    """The numbers of a matched region."""
    op = roles.anchor.op
    assert isinstance(op, Attention)
    q, state = (region.value(name).type for name in roles.anchor.inputs[:2])
    return PrefillProblem(
        queries=sizes.tokens,
        heads=q.static_elements // q.row_width,
        kv_heads=state.static_elements // state.row_width,
        width=q.row_width,
        cache_bits=state.dtype.bits,
        pairs=op.pairs(sizes),
        visible=op.visible(sizes),
        window=op.window is not None,
        staged=device.sm >= 90 and device.has("tma"),
        wide=device.has("wgmma"),
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
    )


@dataclass(frozen=True)
class PrefillTile:
    """A block computes `rows` pairs of query and head, all heads of one cache head, `tokens` keys
    at a time; with a window it starts at the first page that a query of the block sees.
    """

    rows: int
    tokens: int
    stages: int
    warps: int

    def queries(self, problem: PrefillProblem) -> int:
        """Queries of a block."""
        return self.rows // problem.group

    def steps(self, problem: PrefillProblem) -> int:
        """Key tiles that a block with the mean number of visible keys walks."""
        mean = ceil_div(problem.pairs, problem.queries)
        return ceil_div(mean + self.queries(problem) // 2, self.tokens)

    def footprint(self, problem: PrefillProblem) -> Footprint:
        """Shared memory: the queries, `stages` steps of keys and values."""
        width, size = next_power_of_two(problem.width), problem.cache_bits // 8
        shared = (self.rows + self.stages * self.tokens * 2) * width * size
        registers = self.registers(problem)
        if self.spills(problem):
            registers = _MOST_REGISTERS
        return Footprint(self.warps, registers, shared)

    def spills(self, problem: PrefillProblem) -> bool:
        """Whether it may be compiled although it does not fit its registers."""
        spilled = self.registers(problem) - _MOST_REGISTERS
        return problem.wide and self.may_spill and 0 < spilled <= _MOST_SPILLED

    @property
    def may_spill(self) -> bool:
        """Whether the compiled code may: four warps that hold 128 rows."""
        return self.rows == 128 and self.warps == 4

    def registers(self, problem: PrefillProblem) -> int:
        """Of a thread, as many as it would like: sums, scores, their exponentials."""
        width, size = next_power_of_two(problem.width), problem.cache_bits // 8
        threads = self.warps * WARP
        held = self.rows * (width + 1.5 * self.tokens) / threads
        held += 2 * self.stages * self.tokens * width * size / (16 * threads)  # addresses
        if self.staged(problem):
            return frame_registers(1.15 * held)
        held += self.rows * (width * size / 4 + 0.5 * self.tokens) / threads  # queries, weights
        return frame_registers(1.3 * held)

    def staged(self, problem: PrefillProblem) -> bool:
        """Whether four warps together multiply 64 rows from shared memory."""
        return problem.staged and self.rows >= 64 and self.warps % 4 == 0

    def problems(self, problem: PrefillProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block, more warps than 16-row bands, and groups that fill no block."""
        found = list(self.footprint(problem).problems(device))
        if self.rows < problem.group:
            found.append(f"{problem.group} heads share a cache head, a block has {self.rows} rows")
        least = 8 if self.staged(problem) else 16  # two times four warps may share 64 rows
        if self.rows < least * self.warps:
            found.append(f"{self.warps} warps have no {least} rows each")
        return tuple(found)

    def time(self, problem: PrefillProblem, device: Device) -> Timing:
        """Arithmetic of whole tiles. The last block of a causal prompt walks twice the mean."""
        bands = ceil_div(problem.queries, self.queries(problem))
        blocks, steps = bands * problem.kv_heads, self.steps(problem)
        walked = blocks * steps * self.tokens
        width = next_power_of_two(problem.width)
        longest = problem.visible * problem.queries / problem.pairs
        grid = Grid(
            blocks=blocks,
            footprint=self.footprint(problem),
            steps=steps,
            in_flight=max(1, self.stages - 1),
            early_us=LATENCY_US,
            lead_us=LATENCY_US,  # page numbers, then keys
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=walked * 2 * problem.width * problem.cache_bits // 8,
            vector_ops=6.0 * walked * self.rows,
            tensor_flops=4.0 * walked * self.rows * width,
            tensor_dtype="bfloat16" if problem.cache_bits <= 16 else "float32",
            tensor_share=self.share(problem, device),
            longest=longest,
        )
        return timing(grid, demand, device)

    def share(self, problem: PrefillProblem, device: Device) -> float:
        """Part of the large product's rate."""
        if not problem.wide:
            return _ELSEWHERE
        share: float = _SHARE * _NARROW ** max(0.0, math.log2(128 / self.rows))
        if self.tokens < 64:
            share *= _SHORT
        if self.footprint(problem).resident(device) > 1:
            return share
        share *= _ALONE if self.stages * self.tokens > 128 else _SHALLOW
        return share * (_FEW if self.warps < 8 else 1.0)

    def masks(self, problem: PrefillProblem) -> tuple[str, ...]:
        """The diagonal, the window's far edge, and what does not divide."""
        edges = "the diagonal and the window's far edge" if problem.window else "the diagonal"
        return (
            f"masked entries: {edges}",
            *masked("queries", problem.queries, self.queries(problem)),
            *masked("rows", self.queries(problem) * problem.group, self.rows),
            *masked("head", problem.width, next_power_of_two(problem.width)),
        )


def space() -> Iterator[PrefillTile]:
    """All tiles."""
    for rows in (128, 64, 32, 16):
        for tokens in (128, 64, 32):
            for stages in (2, 3):
                for warps in (8, 4, 2, 1):
                    yield PrefillTile(rows, tokens, stages, warps)


@lru_cache(maxsize=1024)
def prefill(problem: PrefillProblem, device: Device) -> Best[PrefillProblem] | Refusal:
    """The best tile for a problem."""
    return best(space(), problem, device)


def prefill_roles(region: Region, phase: str) -> AttentionRoles | Refusal | None:
    """Attention of a prompt; None in a decode step. Queries come prepared: norms and rotations of a
    whole tile in float32 would take the registers that scores and sums need, and spill.
    """
    roles = attention_roles(region, phase) if phase != "decode" else None
    if isinstance(roles, AttentionRoles) and roles.query:
        first = roles.query[0].name
        return Refusal(
            f"{first} in float32 needs the registers of scores and sums: the kernel that stores the"
            " keys prepares queries too"
        )
    return roles


def quote_prefill(
    region: Region,
    roles: AttentionRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile."""
    problem = prefill_problem(region, roles, sizes, device)
    found = prefill(problem, device)
    if choice is not None:
        found = given(PrefillTile, choice, problem, device)
    if isinstance(found, Refusal):
        return found
    return Quote(found, problem.bytes, problem.flops, problem)
