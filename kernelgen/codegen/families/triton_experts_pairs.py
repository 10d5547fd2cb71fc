"""Owns the GPU family of routed experts pair by pair: tiles, their limits and times."""

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
from kernelgen.codegen.families.triton_experts import Experts, experts_format, experts_problem
from kernelgen.codegen.families.triton_family import Quote
from kernelgen.codegen.families.triton_time import (
    NEAR_LATENCY_US,
    REDUCE_US,
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.formats.codes import E4M3
from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.ops.expert_linear import distinct_experts
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

MOST_PAIRS = 1024
"""beyond, blocks would read what others have read a thousand times"""
_WORD_OPS = 3
"""instructions for each packed weight; see `triton_packed`"""
_CHOICE_OPS = 8
"""instructions for each expert and choice: key, comparison, the largest, its place"""


@dataclass(frozen=True)
class PairsTile:
    """A block computes `outputs` columns of one pair, or of all pairs of a token where they are
    added up; it walks K in steps of `depth`. Weights cannot be asked for before the ids are known.
    """

    outputs: int
    depth: int
    warps: int

    def footprint(self, problem: Experts) -> Footprint:
        """Registers: the weights of two steps as stored, one float32 sum for each. Packed: the
        numbers of a matrix, of 4-bit codes one of each word at a time, rows, addresses."""
        threads = self.warps * WARP
        each = self.outputs * problem.matrices * self.depth / threads
        stored = 2 * problem.weight_bits / 32
        if problem.packed:
            numbers = each / problem.matrices / (1 if problem.weight_bits == 8 else 4)
            addresses = 4 * self.outputs * problem.matrices * max(1, _chunks(self, problem))
            held = each * stored + numbers + self.depth / threads + addresses
        else:
            held = each * (stored + 1)
        return Footprint(self.warps, frame_registers(held), shared_bytes=self.warps * 128)

    def problems(self, problem: Experts, device: Device) -> tuple[str, ...]:
        """Limits of the block, and steps that no row fills."""
        found = list(self.footprint(problem).problems(device))
        if problem.pairs > MOST_PAIRS:
            found.append(f"{problem.pairs} pairs, one by one at most {MOST_PAIRS}")
        if problem.packed:
            # Where threads outnumber the chunks of a row, rows and codes have different layouts.
            chunks = self.depth * problem.weight_bits // 128
            if chunks == 0:
                found.append("a step of less than 16 bytes of codes")
            elif chunks < self.warps * WARP:
                found.append(Wasteful("less than 16 bytes of a row of codes for each thread"))
        elif self.depth * problem.weight_bits * self.outputs < self.warps * WARP * 128:
            found.append(Wasteful("less than 16 bytes of weights for each thread and step"))
        least = 128 * WARP // problem.weight_bits if problem.packed else 256
        if self.depth > max(least, next_power_of_two(max(problem.k, problem.beside))):
            found.append(Wasteful(f"a step is longer than the row of {problem.k}"))
        return tuple(found)

    def time(self, problem: Experts, device: Device) -> Timing:
        """Weights of each expert from memory once, through the L2 cache once a pair. A choice of
        its own takes a block half of its experts on average.
        """
        rows = problem.tokens if problem.sums else problem.pairs
        per_pair = ceil_div(problem.k, self.depth)
        steps = per_pair * (problem.top if problem.sums else 1)
        steps += ceil_div(problem.beside, self.depth)
        blocks = ceil_div(problem.n, self.outputs) * rows
        choice_us = REDUCE_US * (problem.choices + 1) * (0.25 if self.warps == 1 else 0.5)
        grid = Grid(
            blocks=blocks,
            footprint=self.footprint(problem),
            steps=steps,
            in_flight=min(4, steps),
            lead_us=NEAR_LATENCY_US + (choice_us if problem.choices else 0.0),
        )
        filled = problem.k / (per_pair * self.depth)
        weights = problem.pairs * problem.n * problem.k * problem.matrices / filled
        weights += problem.tokens * problem.n * problem.beside
        chosen = blocks * next_power_of_two(problem.experts) * problem.choices / 2 * _CHOICE_OPS
        demand = Demand(
            memory_bytes=problem.bytes + round(_read_again(problem, device)),
            cache_bytes=problem.pairs * problem.pair_bytes,
            vector_ops=(_WORD_OPS if problem.packed else 2.0) * weights + chosen,
        )
        return timing(grid, demand, device)

    def masks(self, problem: Experts) -> tuple[str, ...]:
        """The last block and the last step."""
        return (
            *masked("outputs", problem.n, self.outputs),
            *masked("depth", problem.k, self.depth),
        )


def _chunks(tile: PairsTile, problem: Experts) -> int:
    """16 bytes of a row of codes that a thread takes in a step."""
    return tile.depth * problem.weight_bits // 128 // (tile.warps * WARP)


def _read_again(problem: Experts, device: Device) -> float:
    """Bytes of weights that come from memory once more: a matrix that two tokens have chosen, when
    so much was read in between that the L2 cache has lost it.
    """
    chosen = distinct_experts(problem.tokens, problem.experts, problem.top)
    lost = max(0.0, 1 - device.l2_bytes / (chosen * problem.pair_bytes))
    return (problem.pairs - chosen) * problem.pair_bytes * lost


def space() -> Iterator[PairsTile]:
    """All tiles, wide steps first."""
    for depth in (1024, 512, 2048, 256, 4096, 128):
        for warps in (4, 2, 8, 1):
            for outputs in (4, 2, 8, 16, 1):
                yield PairsTile(outputs, depth, warps)


@lru_cache(maxsize=1024)
def _pairs(problem: Experts, device: Device) -> Best[Experts] | Refusal:
    return best(space(), problem, device)


def quote_pairs(
    region: Region,
    roles: ExpertRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile, pair by pair."""
    packed = experts_format(region, roles)
    if packed is not None and packed.code is E4M3 and device.sm < 89:
        return Refusal(f"{device.sm_name} does not widen 8-bit floats")
    problem = experts_problem(region, roles, sizes)
    found = _pairs(problem, device)
    if choice is not None:
        found = given(PairsTile, choice, problem, device)
    if isinstance(found, Refusal):
        return found
    notes = ("each block chooses its expert itself",) if problem.choices else ()
    return Quote(found, problem.bytes, problem.flops, problem, notes=notes)
