"""Owns the GPU family of routed experts whose pairs are sorted: tiles, their limits and times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.expert_roles import ExpertRoles
from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, Wasteful, best, given, masked
from kernelgen.codegen.families.triton_experts import Experts, experts_problem
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
from kernelgen.planner.family import Pass, Refusal
from kernelgen.planner.network import Region

ORDER_BLOCK = 4096
"""pairs that a block of the sorting launch looks at together: rounds of loads follow each other"""
ORDER_WARPS = 8
_TENSOR_SHARE = 0.5
_LEAST_WORDS = 16
_DECODE_OPS = 8
"""as in `triton_packed`: words of codes for a product, instructions for each number"""


def start_words(experts: int) -> int:
    """int32 words of scratch that hold where each expert's pairs start, in whole lines."""
    return ceil_div(experts + 2, 32) * 32


def most_bands(pairs: int, experts: int, rows: int) -> int:
    """Bands of `rows` pairs of one expert, however they are chosen; one kind is for no expert."""
    return pairs // rows + min(experts + 1, pairs)


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
        """Shared memory: `stages` steps of both operands, of packed weights one step of numbers
        too. Registers: the float32 sums, and such numbers on their way."""
        wide, threads = self.outputs * problem.matrices, self.warps * WARP
        bits = 16 if problem.math == "bfloat16" else 32
        step = self.depth * (wide * problem.weight_bits + self.rows * bits) // 8
        held = wide * self.rows * 1.25
        numbers = self.outputs * self.depth * bits // 8 if problem.packed else 0
        if problem.packed:
            held += self.outputs * self.depth * problem.weight_bits / 4
        registers = frame_registers(held / threads + 16)
        return Footprint(self.warps, registers, self.stages * step + numbers)

    def problems(self, problem: Experts, device: Device) -> tuple[str, ...]:
        """Limits of the block."""
        found = list(self.footprint(problem).problems(device))
        least = _LEAST_WORDS * 32 // problem.weight_bits
        if problem.packed and self.depth < least:
            found.append(f"fewer than {_LEAST_WORDS} words of codes for a tensor core product")
        if self.depth > max(64, least if problem.packed else 0, next_power_of_two(problem.k)):
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
        decoding = _DECODE_OPS if problem.packed else 0
        demand = Demand(
            memory_bytes=problem.bytes,
            vector_ops=bands * problem.n * problem.k * problem.matrices * decoding,
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


def _sorted_space(problem: Experts) -> Iterator[SortedTile]:
    for rows in (16, 32, 64, 128):
        for outputs, warps in ((64, 4), (128, 4), (128, 8), (32, 4)):
            for depth in (64, 128, 256 if problem.packed else 32):
                for stages in (4, 3, 2):
                    yield SortedTile(rows, outputs, depth, stages, warps)


@lru_cache(maxsize=1024)
def _sorted(problem: Experts, device: Device) -> Best[Experts] | Refusal:
    return best(_sorted_space(problem), problem, device)


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
