"""Owns the GPU family of routed experts of few tokens, expert by expert: tiles, limits, times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.expert_roles import ExpertRoles
from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.families.triton_choice import Best, Wasteful, best, given
from kernelgen.codegen.families.triton_experts import Experts, experts_problem
from kernelgen.codegen.families.triton_experts_sorted import SortedTile
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
from kernelgen.ir.types import Sizes
from kernelgen.ops.expert_linear import distinct_experts
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

MOST_PAIRS = 1024
"""that every block looks through by itself; more are sorted once for all"""
_LEAST_PAIRS = 16
_LINE_BYTES = 128
"""that one request brings to the L2 cache"""
_LIKELY = 0.7
"""share of experts that somebody chooses from which their first lines are worth asking for"""
_TENSOR_SHARE = 0.5
_DECODE_OPS = 8
"""as in `triton_experts_sorted`"""


def padded_pairs(pairs: int) -> int:
    """Places for pairs in a block that looks through all of them."""
    return max(_LEAST_PAIRS, next_power_of_two(pairs))


@dataclass(frozen=True)
class GroupedTile(SortedTile):
    """A block computes `outputs` columns of one expert for all its pairs, `rows` of them at a time.

    It knows its expert before the choice is made: it asks for `ahead` lines of 128 bytes of each
    column while the kernels before still run. Then it finds its pairs among `pairs` itself, which
    takes the place of a launch that sorts.
    """

    pairs: int
    ahead: int

    def problems(self, problem: Experts, device: Device) -> tuple[str, ...]:
        """Limits of the block, and pairs that it was not made for."""
        found = list(super().problems(problem, device))
        if problem.pairs > MOST_PAIRS:
            found.append(f"{problem.pairs} pairs, a block looks through {MOST_PAIRS} at most")
        if self.pairs != padded_pairs(problem.pairs):
            found.append(f"{problem.pairs} pairs in a tile for {self.pairs}")
        if self.ahead * _LINE_BYTES * 8 > problem.k * problem.weight_bits:
            found.append(f"{self.ahead} lines of a column of {problem.k}")
        if self.ahead and _chosen(problem) < _LIKELY * problem.experts:
            found.append(Wasteful("lines of experts that nobody has chosen"))
        return tuple(found)

    def time(self, problem: Experts, device: Device) -> Timing:
        """Padded arithmetic; an expert's weights once for each band of its pairs."""
        bands, columns = self.bands(problem), ceil_div(problem.n, self.outputs)
        idle = max(0.0, problem.experts + 1 - _chosen(problem))
        look_us = REDUCE_US * 2 + self.pairs * self.rows / (self.warps * 32) * 1e-3
        grid = Grid(
            blocks=max(1, round(_chosen(problem) * columns)),
            footprint=self.footprint(problem),
            steps=ceil_div(problem.k, self.depth),
            in_flight=max(1, self.stages - 1),
            step_us=self.depth / 64 * (0.15 + 0.002 * self.rows),
            lead_us=NEAR_LATENCY_US + look_us,
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


def _chosen(problem: Experts) -> float:
    return distinct_experts(problem.tokens, problem.experts, problem.top)


def grouped_space(problem: Experts) -> Iterator[GroupedTile]:
    """All tiles for so many pairs."""
    pairs, likely = padded_pairs(problem.pairs), _chosen(problem) >= _LIKELY * problem.experts
    for rows in (16, 32, 64):
        for outputs, warps in ((64, 4), (32, 4), (128, 4), (128, 8), (32, 2)):
            for depth in (128, 64, 256):
                for stages in (4, 3, 2):
                    for ahead in (4, 0) if likely else (0,):
                        yield GroupedTile(rows, outputs, depth, stages, warps, pairs, ahead)


@lru_cache(maxsize=1024)
def _grouped(problem: Experts, device: Device) -> Best[Experts] | Refusal:
    return best(grouped_space(problem), problem, device)


def quote_grouped(
    region: Region,
    roles: ExpertRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile, each block looking for its expert's pairs."""
    problem = experts_problem(region, roles, sizes)
    found = _grouped(problem, device)
    if choice is not None:
        found = given(GroupedTile, choice, problem, device)
    if isinstance(found, Refusal):
        return found
    return Quote(found, problem.bytes, problem.flops, problem)
