"""Owns decode attention: one query row a request, its cache split over blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from kernelgen.codegen.families.roles import AttentionRoles, attention_roles
from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, Tile, Wasteful, best, given, masked
from kernelgen.codegen.families.triton_family import LEAST_BYTES, Quote
from kernelgen.codegen.families.triton_time import (
    LATENCY_US,
    REDUCE_US,
    TICKET_US,
    UNIT_GB_S,
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.hw.device import Device
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.ops import Attention
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

PAGE = 16
"""tokens of a cache page: a step reads whole pages"""
_PAGES_SHARE = 0.92
"""of the read bandwidth, for pages of 4 KiB in any order: what the best public kernels reach on 2
GiB (H200)"""
_STEP_US, _TOKEN_US = 1.0, 0.006
"""scores, softmax and sums of a step and of each of its entries: a chain"""
_NEW_ROW_US = 0.8
"""the row that this step brings: its norm, its scores, its way into the cache"""
_LEAST_HEADS = 16  # the short side of a tensor core product
_MOST_SPLITS = 64
_EXCHANGE_US = 1.6
"""results into the memory of a neighbour in the cluster, a barrier, and their sums (0.8), and the
wait for places side by side, which the kernel before still holds"""
_CLUSTERS = (1, 8, 4, 2)
COPIES = 4
"""of the logarithm of a denominator: as many as a thread merges columns at a time"""
_FULL = 0.9
"""of the multiprocessors: so many must find work in a long context, whatever context was planned"""


@dataclass(frozen=True)
class DecodeProblem:
    """Attention of one new token a request, as numbers."""

    requests: int
    heads: int
    kv_heads: int
    width: int
    """of a head"""
    cache_bits: int
    visible: int
    """cache entries that a request reads"""
    window: bool
    """whether no request ever reads more than that"""
    statistics: int
    """norms of heads on the way"""
    prep_ops: int
    insert: bool
    bytes: int
    flops: int

    @property
    def group(self) -> int:
        """Query heads that share a cache head: a block computes them together."""
        return self.heads // self.kv_heads

    def reading(self, share: float) -> DecodeProblem:
        """The same requests with a context of another length."""
        visible = max(1, round(self.visible * share))
        entries = self.requests * (visible - self.visible)
        more = entries * self.kv_heads * self.width * 2 * self.cache_bits // 8
        return replace(self, visible=visible, bytes=max(1, self.bytes + more))


def decode_problem(region: Region, roles: AttentionRoles, sizes: Sizes) -> DecodeProblem:
    """The numbers of a matched region."""
    op = roles.anchor.op
    assert isinstance(op, Attention)
    q, state = (region.value(name).type for name in roles.anchor.inputs[:2])
    prep = (*roles.query, *roles.keys)
    types = region.network.block.input_types
    return DecodeProblem(
        requests=sizes.rows,
        heads=q.static_elements // q.row_width,
        kv_heads=state.static_elements // state.row_width,
        width=q.row_width,
        cache_bits=state.dtype.bits,
        visible=op.visible(sizes),
        window=op.window is not None,
        statistics=min(1, sum(n.op.has(Trait.ROW_REDUCE) for n in prep)),
        prep_ops=sum(n.op.flops(types(n), sizes) for n in prep),
        insert=roles.insert is not None,
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
    )


@dataclass(frozen=True)
class DecodeTile:
    """A block reads one of at most `splits` equal parts of one cache head of one request, `tokens`
    entries a step, `least` entries or more.

    How many parts a request really has follows from its length; blocks without one leave. The
    `cluster` blocks beside each other merge their parts through shared memory, each some of the
    columns; of more blocks the last one of a cache head to finish merges what there is. A short
    context has one part and no merge.
    """

    tokens: int
    splits: int
    least: int
    stages: int
    warps: int
    cluster: int

    def part(self, problem: DecodeProblem) -> int:
        """Entries of one block, whole steps."""
        equal = ceil_div(ceil_div(problem.visible, self.splits), self.tokens) * self.tokens
        return max(equal, self.least)

    def parts(self, problem: DecodeProblem) -> int:
        """Blocks of a cache head that have work."""
        return ceil_div(problem.visible, self.part(problem))

    def footprint(self, problem: DecodeProblem) -> Footprint:
        """Shared memory: `stages` steps of keys and values. Registers: the first step's, sums of
        all heads, scores of a step.
        """
        heads, width = max(_LEAST_HEADS, problem.group), next_power_of_two(problem.width)
        step = self.tokens * 2 * width * problem.cache_bits // 8
        held = (heads * width + 1.5 * heads * self.tokens + step / 4) / (self.warps * WARP)
        shared = self.stages * step + heads * width * 4 + self.exchange_bytes(problem)
        return Footprint(self.warps, frame_registers(held + 24), shared)

    def exchange_bytes(self, problem: DecodeProblem) -> int:
        """Shared memory for a block's own columns and the denominators of its cluster, float32."""
        if self.cluster == 1:
            return 0
        lanes = next_power_of_two(problem.group)
        return 4 * lanes * (next_power_of_two(problem.width) + self.cluster)

    def problems(self, problem: DecodeProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block and of clusters, a step longer than what is read, splits without
        work, and too few blocks for a long context.
        """
        found = list(self.footprint(problem).problems(device))
        if self.cluster not in _CLUSTERS or self.splits % self.cluster:
            found.append(f"clusters of {self.cluster} blocks for {self.splits} splits")
        if self.cluster > 1 and not device.has("cluster"):
            found.append(f"{device.sm_name} has no clusters")
        places = problem.requests * problem.kv_heads * self.cluster
        if self.cluster > 1 and places > device.units:
            found.append(Wasteful(f"clusters of {places} blocks do not start together"))
        if next_power_of_two(problem.width) < COPIES * self.cluster:
            found.append(f"{problem.width} columns for {self.cluster} blocks to merge")
        if self.tokens > max(2 * PAGE, next_power_of_two(problem.visible)):
            found.append(f"a step is longer than the {problem.visible} visible entries")
        cache_heads = problem.requests * problem.kv_heads
        if problem.window:
            if self.splits > self.parts(problem):
                found.append(
                    f"{problem.visible} entries in {self.splits} splits leave less than a step"
                )
        elif cache_heads * self.splits < _FULL * device.units and self.splits < _MOST_SPLITS:
            found.append(
                f"{cache_heads * self.splits} blocks leave multiprocessors idle in any context"
            )
        return tuple(found)

    def partial_bytes(self, problem: DecodeProblem) -> int:
        """float32 results of all splits and the logarithms of their denominators."""
        if self.splits == self.cluster:
            return 0
        columns = self.splits // self.cluster * problem.width + self.splits * COPIES
        return problem.requests * problem.heads * columns * 4

    def merge_us(self, problem: DecodeProblem) -> float:
        """The exchange in a cluster; the last block draws its ticket and reads the parts of its
        columns.
        """
        parts = self.parts(problem)
        if parts == 1:
            return 0.0
        exchange = _EXCHANGE_US if self.cluster > 1 else 0.0
        if parts <= self.cluster:
            return exchange
        size = ceil_div(parts, self.cluster) * problem.group * (problem.width + COPIES) * 4
        return exchange + TICKET_US + size / self.cluster / (UNIT_GB_S * 1e3)

    def time(self, problem: DecodeProblem, device: Device) -> Timing:
        """Pages from memory once. Every split prepares the query again; the last one also stores
        the new row.
        """
        parts = self.parts(problem)
        blocks = problem.requests * problem.kv_heads * parts
        pairs = problem.requests * problem.visible
        padded = max(_LEAST_HEADS, problem.group) * problem.kv_heads
        step = _STEP_US + self.tokens * _TOKEN_US
        grid = Grid(
            blocks=blocks,
            footprint=self.footprint(problem),
            steps=ceil_div(self.part(problem), self.tokens),
            in_flight=max(1, self.stages - 1),
            step_us=step,
            early_us=2 * LATENCY_US,  # lengths, page numbers, first keys: all there before the step
            lead_us=problem.statistics * REDUCE_US + step,
            tail_us=_NEW_ROW_US * problem.insert + REDUCE_US + self.merge_us(problem),
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=problem.bytes + 2 * self.partial_bytes(problem) * parts // self.splits,
            vector_ops=14.0 * pairs * padded + parts * problem.prep_ops,
            tensor_flops=4.0 * pairs * padded * next_power_of_two(problem.width),
            tensor_dtype="bfloat16" if problem.cache_bits <= 16 else "float32",
            tensor_share=0.3,
            bandwidth_share=_PAGES_SHARE,
        )
        return timing(grid, demand, device)

    def masks(self, problem: DecodeProblem) -> tuple[str, ...]:
        """Lengths are known to the step only: the last page of a request is always masked."""
        return (
            "masked entries: the last page of each request",
            *masked("heads", problem.group, _LEAST_HEADS),
            *masked("head", problem.width, next_power_of_two(problem.width)),
        )


def space() -> Iterator[DecodeTile]:
    """All tiles, those without a merge first."""
    for splits in (1, 2, 4, 8, 16, 32, _MOST_SPLITS):
        for tokens in (64, 128, 32):
            for stages in (2, 1, 3):
                for warps in (4, 8, 2):
                    for steps in (1, 2, 4):
                        for cluster in _CLUSTERS:
                            least = steps * tokens
                            yield DecodeTile(tokens, splits, least, stages, warps, cluster)


@lru_cache(maxsize=1024)
def decode(problem: DecodeProblem, device: Device) -> Best[DecodeProblem] | Refusal:
    """The best tile for a problem.

    A plan serves every context: tiles are ranked by their time at the planned one and at those far
    below and above it, each in proportion to what it reads.
    """

    def elsewhere(tile: Tile[DecodeProblem]) -> float:
        return sum(tile.time(p, device).us / share for p, share in others)

    others = [] if problem.window else [(problem.reading(s), s) for s in (1 / 8, 8)]
    return best(space(), problem, device, elsewhere)


def decode_roles(region: Region, phase: str) -> AttentionRoles | Refusal | None:
    """Attention of a decode step; None in a prompt."""
    return attention_roles(region, phase) if phase == "decode" else None


def quote_decode(
    region: Region,
    roles: AttentionRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile with its partial results, counters, and second kernel where it has one."""
    problem = decode_problem(region, roles, sizes)
    found = decode(problem, device)
    if choice is not None:
        found = given(DecodeTile, choice, problem, device)
    if isinstance(found, Refusal):
        return found
    tile = found.tile
    assert isinstance(tile, DecodeTile)
    parts = tile.parts(problem)
    how = "one block reads all entries of a cache head"
    if parts > 1:
        who = "a cluster" if parts <= tile.cluster else "the last one of a cache head"
        how = f"{parts} blocks of {tile.part(problem)} entries, {who} merges"
    return Quote(
        best=found,
        bytes=problem.bytes,
        flops=problem.flops,
        problem=problem,
        scratch_bytes=max(LEAST_BYTES, tile.partial_bytes(problem)),
        counters=problem.requests * problem.kv_heads * tile.cluster,
        notes=(how, f"up to {tile.splits} blocks a cache head in longer contexts"),
    )
