"""Owns the GPU family of few routed experts with packed matrices on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from kernelgen.codegen.families.expert_roles import ExpertRoles
from kernelgen.codegen.families.triton_block import (
    WARP,
    Footprint,
    ceil_div,
    frame_registers,
    next_power_of_two,
)
from kernelgen.codegen.families.triton_choice import Best, Wasteful, best, given
from kernelgen.codegen.families.triton_experts import Experts, experts_format, experts_problem
from kernelgen.codegen.families.triton_experts_grouped import MOST_PAIRS, padded_pairs
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

MOST_SINGLE = 64
"""pairs of which each has blocks of its own"""
_LANES_ALONG = 4
_LANE_BYTES = 16
_CODE_OPS = {4: 1.6, 8: 2.6}
"""as in `triton_sliced_packed`"""
_PRODUCT_US = 0.02
_TENSOR_SHARE = 0.3
_FEW_ROWS = 8
# Measured against the model on one H200 (2026-12-01): FP8, NVFP4 and MXFP4, 512 experts of
# 2560 × 640 and 256 of 4096 × 2048 at 1 and 32 tokens.
_BY_PAIR, _BY_EXPERT = 2.5, 1.4


@dataclass(frozen=True)
class PackedExpertsTile:
    """A block computes `outputs` columns; each of its warps takes `steps` × 64 bytes of every row
    of codes at a time.

    `pairs` 0: of one pair, or of a token's pairs and their sum. Else: of one expert, whose pairs it
    finds among so many, `rows` of them at a time.
    """

    rows: int
    outputs: int
    steps: int
    warps: int
    pairs: int

    def depth(self, problem: Experts) -> int:
        """Columns in a step of the whole block."""
        return self.warps * self.steps * _LANES_ALONG * _LANE_BYTES * 8 // problem.weight_bits

    def footprint(self, problem: Experts) -> Footprint:
        """Registers: codes of a step and of the next, numbers of an eighth of them, rows, sums."""
        high, bands = self.outputs * problem.matrices // 8, self.rows // 8
        sums = self.outputs * self.rows / WARP * (problem.matrices + problem.sums)
        held = 8 * high * self.steps + 8 * high + bands * 4 + sums
        shared = self.outputs * self.rows * self.warps * 4
        return Footprint(self.warps, frame_registers(held), shared)

    def problems(self, problem: Experts, device: Device) -> tuple[str, ...]:
        """Limits of the block, and what the two ways cannot do."""
        found = list(self.footprint(problem).problems(device))
        if problem.math != "bfloat16":
            found.append(f"{problem.math} rows: tensor cores multiply bfloat16")
        if self.outputs < 16:
            found.append(f"{self.outputs} columns, a product takes 16")
        if self.pairs:
            if problem.pairs > MOST_PAIRS:
                found.append(f"{problem.pairs} pairs, a block looks through {MOST_PAIRS} at most")
            if self.pairs != padded_pairs(problem.pairs):
                found.append(f"{problem.pairs} pairs in a tile for {self.pairs}")
            if problem.sums or problem.choices:
                found.append("choice and sum go pair by pair")
        else:
            if problem.pairs > MOST_SINGLE:
                found.append(f"{problem.pairs} pairs, one by one at most {MOST_SINGLE}")
            if self.rows != _FEW_ROWS:
                found.append(f"a pair is one row, not {self.rows}")
        if self.depth(problem) > max(256, next_power_of_two(problem.k)):
            found.append(Wasteful(f"a step is longer than the row of {problem.k}"))
        return tuple(found)

    def time(self, problem: Experts, device: Device) -> Timing:
        """Codes of each chosen expert from memory once, through the tensor cores once a block."""
        chosen = distinct_experts(problem.tokens, problem.experts, problem.top)
        columns, depth = ceil_div(problem.n, self.outputs), self.depth(problem)
        rounds = problem.top if problem.sums else 1
        parts = chosen if self.pairs else problem.pairs / rounds
        bands = max(1.0, problem.pairs / chosen / self.rows) if self.pairs else 1.0
        weights = (chosen if self.pairs else problem.pairs) * problem.n * problem.k
        weights *= problem.matrices * bands
        chain = depth / self.warps / 16 * self.rows / 8 * problem.matrices
        idle = (problem.experts + 1 - chosen) * columns * 2e-3 if self.pairs else 0.0
        grid = Grid(
            blocks=max(1, round(parts * columns)),
            footprint=self.footprint(problem),
            steps=ceil_div(problem.k, depth) * rounds,
            in_flight=2,
            step_us=chain * _PRODUCT_US * max(1, self.outputs // 16),
            lead_us=NEAR_LATENCY_US + REDUCE_US * (2 + problem.choices),
            tail_us=REDUCE_US + idle / device.units,
        )
        demand = Demand(
            memory_bytes=problem.bytes,
            cache_bytes=round(weights * problem.weight_bits / 8),
            vector_ops=weights * _CODE_OPS[8 if problem.weight_bits > 4 else 4],
            tensor_flops=2.0 * weights * self.rows,
            tensor_dtype=problem.math,
            tensor_share=_TENSOR_SHARE,
        )
        found = timing(grid, demand, device)
        more = _BY_EXPERT if self.pairs else _BY_PAIR
        exposed = (*found.exposed, ("measured beyond the model", found.us * (more - 1)))
        return replace(found, us=found.us * more, exposed=exposed)

    def masks(self, problem: Experts) -> tuple[str, ...]:
        """Rows are padded to the tensor cores' side."""
        return (f"rows padded to {self.rows}",)


def packed_experts_space(problem: Experts) -> Iterator[PackedExpertsTile]:
    """All tiles, of both ways."""
    for pairs in (0, padded_pairs(problem.pairs)):
        for rows in (8, 16) if pairs else (8,):
            for outputs, steps, warps in product((16, 32, 64), (1, 2, 4, 8), (4, 8, 2, 1)):
                yield PackedExpertsTile(rows, outputs, steps, warps, pairs)


@lru_cache(maxsize=1024)
def _packed(problem: Experts, device: Device) -> Best[Experts] | Refusal:
    return best(packed_experts_space(problem), problem, device)


def quote_packed_experts(
    region: Region,
    roles: ExpertRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile of either way."""
    if experts_format(region, roles) is None:
        return Refusal("its stacks are plain numbers")
    if roles.beside is not None:
        return Refusal(f"{roles.beside.name} multiplies plain numbers")
    problem = experts_problem(region, roles, sizes)
    found = _packed(problem, device)
    if choice is not None:
        found = given(PackedExpertsTile, choice, problem, device)
    if isinstance(found, Refusal):
        return found
    return Quote(found, problem.bytes, problem.flops, problem)
