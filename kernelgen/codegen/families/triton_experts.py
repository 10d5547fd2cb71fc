"""Owns the GPU families of routed experts: tiles, their limits and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.expert_roles import (
    ExpertRoles,
    RouteRoles,
    expert_roles,
    route_roles,
)
from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, Wasteful, best, given, masked
from kernelgen.codegen.families.triton_family import LEAST_BYTES, Quote
from kernelgen.codegen.families.triton_time import (
    NEAR_LATENCY_US,
    REDUCE_US,
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.ops.expert_linear import distinct_experts
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Pass, Refusal
from kernelgen.planner.network import Region

ORDER_BLOCK = 1024
"""pairs that a block of the sorting launch looks at together"""
MOST_PAIRS = 1024
"""pair by pair: beyond, blocks would read what others have read a thousand times"""
_TENSOR_SHARE = 0.5


def start_words(experts: int) -> int:
    """int32 words of scratch that hold where each expert's pairs start, in whole lines."""
    return ceil_div(experts + 2, 32) * 32


def most_bands(pairs: int, experts: int, rows: int) -> int:
    """Bands of `rows` pairs of one expert, however they are chosen; one kind is for no expert."""
    return pairs // rows + min(experts + 1, pairs)


@dataclass(frozen=True)
class RouteProblem:
    """A router's choice as numbers."""

    rows: int
    experts: int
    top: int
    bytes: int
    flops: int


@dataclass(frozen=True)
class RouteTile:
    """A block takes `rows` tokens whole."""

    rows: int
    warps: int

    def footprint(self, problem: RouteProblem) -> Footprint:
        """Registers: logit, value and a key of two words for each expert."""
        each = 4 * self.rows * next_power_of_two(problem.experts) / (self.warps * WARP)
        return Footprint(self.warps, frame_registers(each), self.warps * 512)

    def problems(self, problem: RouteProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block, and rows that nobody has."""
        found = list(self.footprint(problem).problems(device))
        if self.rows > next_power_of_two(problem.rows):
            found.append(Wasteful("more rows than there are"))
        return tuple(found)

    def time(self, problem: RouteProblem, device: Device) -> Timing:
        """One reduction after another, a choice each."""
        grid = Grid(
            blocks=ceil_div(problem.rows, self.rows),
            footprint=self.footprint(problem),
            steps=1,
            lead_us=REDUCE_US * problem.top * (1 if self.warps > 1 else 0.5),
            tail_us=NEAR_LATENCY_US,
        )
        ops = float(problem.rows * next_power_of_two(problem.experts) * problem.top * 6)
        demand = Demand(problem.bytes, problem.bytes, vector_ops=ops)
        return timing(grid, demand, device)

    def masks(self, problem: RouteProblem) -> tuple[str, ...]:
        """Experts up to a power of two."""
        return masked("experts", problem.experts, next_power_of_two(problem.experts))


@lru_cache(maxsize=1024)
def _route(problem: RouteProblem, device: Device) -> Best[RouteProblem] | Refusal:
    space = (RouteTile(rows, warps) for rows in (1, 2, 4, 8) for warps in (1, 2, 4, 8))
    return best(space, problem, device)


def route_roles_of(region: Region, phase: str) -> RouteRoles | Refusal | None:
    """A router's choice."""
    return region.recall("route", lambda: route_roles(region))


def quote_route(
    region: Region,
    roles: RouteRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile."""
    moved, flops = region_bytes(region, sizes), region_flops(region, sizes)
    first = roles.nodes[0]
    experts = max(region.value(n.inputs[0]).type.row_width for n in roles.nodes)
    top = region.value(first.outputs[0]).type.row_width
    problem = RouteProblem(sizes.tokens, experts, top, moved, flops)
    found = _route(problem, device)
    if choice is not None:
        found = given(RouteTile, choice, problem, device)
    return found if isinstance(found, Refusal) else Quote(found, moved, flops, problem)


@dataclass(frozen=True)
class Experts:
    """Rows times chosen matrices, as numbers."""

    tokens: int
    experts: int
    top: int
    n: int
    k: int
    matrices: int
    sums: bool
    """whether a token's experts are added up in the kernel"""
    weight_bits: int
    math: str
    bytes: int
    flops: int

    @property
    def pairs(self) -> int:
        """Of a token and one of its experts."""
        return self.tokens * self.top

    @property
    def pair_bytes(self) -> int:
        """Weights that one pair asks for."""
        return self.n * self.k * self.matrices * self.weight_bits // 8


def experts_problem(region: Region, roles: ExpertRoles, sizes: Sizes) -> Experts:
    """The numbers of a matched region."""
    x, stack = (region.value(n).type for n in roles.anchors[0].inputs[:2])
    ids = region.value(roles.ids).type
    experts, n = stack.shape[:2]
    assert isinstance(experts, int) and isinstance(n, int)
    narrow = x.dtype.bits == stack.dtype.bits == 16
    return Experts(
        tokens=sizes.tokens,
        experts=experts,
        top=ids.row_width,
        n=n,
        k=stack.row_width,
        matrices=len(roles.anchors),
        sums=roles.sum is not None,
        weight_bits=stack.dtype.bits,
        math="bfloat16" if narrow else "float32",
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
    )


@dataclass(frozen=True)
class PairsTile:
    """A block computes `outputs` columns of one pair, or of all pairs of a token where they are
    added up; it walks K in steps of `depth`. Weights cannot be asked for before the ids are known.
    """

    outputs: int
    depth: int
    warps: int

    def footprint(self, problem: Experts) -> Footprint:
        """Registers: the weights of two steps as stored, one float32 sum for each."""
        each = self.outputs * problem.matrices * self.depth / (self.warps * WARP)
        registers = frame_registers(each * (2 * problem.weight_bits / 32 + 1))
        return Footprint(self.warps, registers, shared_bytes=self.warps * 128)

    def problems(self, problem: Experts, device: Device) -> tuple[str, ...]:
        """Limits of the block, and steps that no row fills."""
        found = list(self.footprint(problem).problems(device))
        if problem.pairs > MOST_PAIRS:
            found.append(f"{problem.pairs} pairs, one by one at most {MOST_PAIRS}")
        if self.depth * problem.weight_bits < self.warps * WARP * 128 // self.outputs:
            found.append(Wasteful("less than 16 bytes of weights for each thread and step"))
        if self.depth > max(256, next_power_of_two(problem.k)):
            found.append(Wasteful(f"a step is longer than the row of {problem.k}"))
        return tuple(found)

    def time(self, problem: Experts, device: Device) -> Timing:
        """Weights of each expert from memory once, through the L2 cache once a pair."""
        rows = problem.tokens if problem.sums else problem.pairs
        steps = ceil_div(problem.k, self.depth) * (problem.top if problem.sums else 1)
        grid = Grid(
            blocks=ceil_div(problem.n, self.outputs) * rows,
            footprint=self.footprint(problem),
            steps=steps,
            in_flight=2 if steps > 1 else 1,
            lead_us=NEAR_LATENCY_US,
        )
        weights = problem.pairs * problem.n * problem.k * problem.matrices
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=problem.pairs * problem.pair_bytes,
            vector_ops=2.0 * weights,
        )
        return timing(grid, demand, device)

    def masks(self, problem: Experts) -> tuple[str, ...]:
        """The last block and the last step."""
        return (
            *masked("outputs", problem.n, self.outputs),
            *masked("depth", problem.k, self.depth),
        )


@dataclass(frozen=True)
class SortedTile:
    """A block computes `outputs` columns of `rows` pairs of one expert, `depth` of K at a time."""

    rows: int
    outputs: int
    depth: int
    stages: int
    warps: int

    def bands(self, problem: Experts) -> float:
        """Bands that have work, choices being even."""
        chosen = distinct_experts(problem.tokens, problem.experts, problem.top)
        return max(1.0, chosen * ceil_div(round(problem.pairs / chosen + 0.5), self.rows))

    def footprint(self, problem: Experts) -> Footprint:
        """Shared memory: `stages` steps of both operands. Registers: the float32 sums."""
        wide = self.outputs * problem.matrices
        bits = 16 if problem.math == "bfloat16" else 32
        step = self.depth * (wide * problem.weight_bits + self.rows * bits) // 8
        sums = wide * self.rows / (self.warps * WARP)
        return Footprint(self.warps, frame_registers(sums * 1.25 + 16), self.stages * step)

    def problems(self, problem: Experts, device: Device) -> tuple[str, ...]:
        """Limits of the block."""
        found = list(self.footprint(problem).problems(device))
        if self.depth > max(64, next_power_of_two(problem.k)):
            found.append(Wasteful(f"a step is longer than the row of {problem.k}"))
        return tuple(found)

    def time(self, problem: Experts, device: Device) -> Timing:
        """Padded arithmetic; an expert's weights once a band."""
        bands, columns = self.bands(problem), ceil_div(problem.n, self.outputs)
        idle = most_bands(problem.pairs, problem.experts, self.rows) - bands
        grid = Grid(
            blocks=max(1, round(bands * columns)),
            footprint=self.footprint(problem),
            steps=ceil_div(problem.k, self.depth),
            in_flight=max(1, self.stages - 1),
            step_us=self.depth / 64 * (0.15 + 0.002 * self.rows),
            lead_us=2 * NEAR_LATENCY_US + REDUCE_US,
            tail_us=idle * columns * 2e-3 / device.units,
        )
        padded = bands * self.rows * columns * self.outputs * problem.k * problem.matrices
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=round(bands * (problem.pair_bytes + columns * self.rows * problem.k * 2)),
            tensor_flops=2.0 * padded,
            tensor_dtype=problem.math,
            tensor_share=_TENSOR_SHARE,
        )
        return timing(grid, demand, device)

    def masks(self, problem: Experts) -> tuple[str, ...]:
        """The last band of each expert, the last block and the last step."""
        return (
            "the last band of each expert",
            *masked("outputs", problem.n, self.outputs),
            *masked("depth", problem.k, self.depth),
        )


@lru_cache(maxsize=1024)
def _pairs(problem: Experts, device: Device) -> Best[Experts] | Refusal:
    space = (
        PairsTile(outputs, depth, warps)
        for depth in (1024, 512, 2048, 256, 4096)
        for warps in (4, 2, 8, 1)
        for outputs in (4, 2, 8, 16, 1)
    )
    return best(space, problem, device)


def _sorted_space(problem: Experts) -> Iterator[SortedTile]:
    for rows in (16, 32, 64, 128):
        for outputs, warps in ((64, 4), (128, 4), (128, 8), (32, 4)):
            for depth in (64, 128, 32):
                for stages in (4, 3, 2):
                    yield SortedTile(rows, outputs, depth, stages, warps)


@lru_cache(maxsize=1024)
def _sorted(problem: Experts, device: Device) -> Best[Experts] | Refusal:
    return best(_sorted_space(problem), problem, device)


def experts_roles(sums: bool) -> Callable[[Region, str], ExpertRoles | Refusal | None]:
    """Products with chosen experts; `sums`: whether their sum may belong to them."""

    def roles(region: Region, phase: str) -> ExpertRoles | Refusal | None:
        return region.recall(("experts", sums), lambda: expert_roles(region, sums=sums))

    return roles


def quote_pairs(
    region: Region,
    roles: ExpertRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile, pair by pair."""
    problem = experts_problem(region, roles, sizes)
    found = _pairs(problem, device)
    if choice is not None:
        found = given(PairsTile, choice, problem, device)
    if isinstance(found, Refusal):
        return found
    return Quote(found, problem.bytes, problem.flops, problem)


def quote_sorted(
    region: Region,
    roles: ExpertRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile, pairs sorted by expert by a launch before."""
    problem = experts_problem(region, roles, sizes)
    found = _sorted(problem, device)
    if choice is not None:
        found = given(SortedTile, choice, problem, device)
    if isinstance(found, Refusal):
        return found
    looks = 2 * ceil_div(problem.pairs, ORDER_BLOCK) * NEAR_LATENCY_US
    sorting = Pass(
        "order",
        8 * problem.pairs,
        device.boundary_us + 2 * REDUCE_US + looks,
        "every expert looks for its pairs",
    )
    scratch = 4 * (start_words(problem.experts) + problem.pairs)
    return Quote(
        best=found,
        bytes=problem.bytes,
        flops=problem.flops,
        problem=problem,
        scratch_bytes=max(LEAST_BYTES, scratch),
        passes=(sorting,),
    )
