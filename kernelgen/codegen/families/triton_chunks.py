"""Owns the GPU family of the delta rule over prompts: chunks side by side, then states in order."""

from __future__ import annotations

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
from kernelgen.codegen.families.triton_choice import Best, best, given, masked
from kernelgen.codegen.families.triton_family import Quote
from kernelgen.codegen.families.triton_time import (
    LATENCY_US,
    NEAR_LATENCY_US,
    Demand,
    Grid,
    Timing,
    timing,
)
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.hw.device import Device
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.ops import DeltaScan
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Pass, Refusal
from kernelgen.planner.network import Region
from kernelgen.planner.planner import MAX_ROWS

CHUNK = 64
"""positions of a chunk; chunks begin at multiples of it"""
PART = 16
"""positions of a part of a chunk: within it decays are taken relative to its middle"""
SIDE = 16  # least side of a tensor core product
WALKERS = 4
"""requests whose states are walked side by side; more of them follow one another"""
_CHUNK_US = 12.0
"""what a block takes for one chunk: a chain of small products. Assumed."""
_WARPS = 8  # that a multiprocessor has room for: they need all registers that there are
_STEP_US = 1.6
"""from a state to the next one: two products, one after the other. Assumed."""


def of_state(keys: int) -> int:
    """Keys as a side of a product."""
    return max(SIDE, next_power_of_two(keys))


def record_elements(keys: int, values: int) -> int:
    """What a token and head leaves for the walk: three rows of keys, one of values, one of the
    chunk."""
    return 3 * of_state(keys) + of_state(values) + CHUNK


def most_tiles(tokens: int) -> int:
    """Chunks of a step: each request may begin and end inside one, and one may be divided where a
    state is kept."""
    return tokens // CHUNK + 3 * min(tokens, MAX_ROWS)


@dataclass(frozen=True)
class ChunkProblem:
    """The delta rule over the tokens of a step, as numbers."""

    tokens: int
    requests: int
    heads: int
    keys: int
    values: int
    bits: int
    """of an element of what chunks leave for the walk"""
    bytes: int
    flops: int

    @property
    def record_bytes(self) -> int:
        """Of one token and head."""
        return record_elements(self.keys, self.values) * self.bits // 8

    @property
    def scratch_bytes(self) -> int:
        """Records of all tokens, then what is left of each key after each chunk."""
        ends = most_tiles(self.tokens) * of_state(self.keys) * 4
        return self.heads * (self.tokens * self.record_bytes + ends)


@dataclass(frozen=True)
class ChunkTile:
    """The first launches have `warps` for a chunk of a head; the last one `walkers` for `width`
    columns of a head's state, which it carries from chunk to chunk."""

    width: int
    walkers: int
    stages: int
    warps: int

    def footprint(self, problem: ChunkProblem) -> Footprint:
        """Of the walk. Registers: the state, new values and results. Shared memory: `stages`
        chunks."""
        keys, size = of_state(problem.keys), problem.bits // 8
        step = CHUNK * (3 * keys + CHUNK) * size
        held = self.width * (1.5 * keys + 3 * CHUNK) / (self.walkers * WARP)
        shared = self.stages * step + (keys + CHUNK) * self.width * size
        return Footprint(self.walkers, frame_registers(held + 24), shared)

    def problems(self, problem: ChunkProblem, device: Device) -> tuple[str, ...]:
        """Limits of the block."""
        found = list(self.footprint(problem).problems(device))
        if self.width > of_state(problem.values):
            found.append(f"a part is longer than the {problem.values} columns of a head")
        return tuple(found)

    def chunks_us(self, problem: ChunkProblem, device: Device) -> float:
        """The first launch: waves of blocks, or what it writes."""
        blocks = (ceil_div(problem.tokens, CHUNK) + problem.requests - 1) * problem.heads
        resident = max(1, _WARPS // self.warps)
        waves = ceil_div(max(1, blocks), device.units * resident)
        written = problem.tokens * problem.heads * problem.record_bytes
        memory = (problem.bytes + written) / (device.copy_gb_s * 1e3)
        return 2 * device.boundary_us + max(waves * _CHUNK_US, memory)

    def time(self, problem: ChunkProblem, device: Device) -> Timing:
        """The walk: a chain of chunks for each column, all heads and requests side by side."""
        parts = ceil_div(problem.values, self.width)
        chunks = ceil_div(ceil_div(problem.tokens, problem.requests), CHUNK)
        records = problem.tokens * problem.heads * problem.record_bytes
        grid = Grid(
            blocks=problem.requests * problem.heads * parts,
            footprint=self.footprint(problem),
            steps=chunks,
            in_flight=max(1, self.stages - 1),
            step_us=_STEP_US,
            early_us=LATENCY_US,
            lead_us=NEAR_LATENCY_US,
        )
        demand = Demand(
            memory_bytes=problem.bytes + records,
            cache_bytes=problem.bytes + records * parts,
            tensor_flops=float(problem.flops),
            tensor_dtype="bfloat16" if problem.bits <= 16 else "float32",
            tensor_share=0.3,
            copies=True,
        )
        return timing(grid, demand, device)

    def masks(self, problem: ChunkProblem) -> tuple[str, ...]:
        """The ends of each request, and heads that are no power of two."""
        return (
            "masked tokens: the first and last chunk of each request",
            *masked("keys", problem.keys, of_state(problem.keys)),
            *masked("values", problem.values, of_state(problem.values)),
        )


def space() -> Iterator[ChunkTile]:
    """All tiles."""
    for width in (32, 64, 16, 128):
        for walkers in (4, 8):
            for stages in (3, 2, 1):
                for warps in (4, 8):
                    yield ChunkTile(width, walkers, stages, warps)


@lru_cache(maxsize=1024)
def chunks(problem: ChunkProblem, device: Device) -> Best[ChunkProblem] | Refusal:
    """The best tile for a problem, both launches together."""

    def first(tile: object) -> float:
        assert isinstance(tile, ChunkTile)
        return tile.chunks_us(problem, device)

    return best(space(), problem, device, first)


def chunk_roles(region: Region, phase: str) -> ApartRoles | Refusal | None:
    """A delta scan by itself, where requests may have many tokens; None in a decode step."""
    if phase == "decode":
        return None
    return alone_roles(region, DeltaScan, Trait.SCAN)


def quote_chunks(
    region: Region,
    roles: ApartRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The best tile with its scratch and its first launch."""
    q, v = (region.value(roles.anchor.inputs[i]).type for i in (0, 2))
    problem = ChunkProblem(
        tokens=sizes.tokens,
        requests=sizes.rows,
        heads=q.static_elements // q.row_width,
        keys=q.row_width,
        values=v.row_width,
        bits=16 if q.dtype == BFLOAT16 else 32,
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
    )
    found = chunks(problem, device)
    if choice is not None:
        found = given(ChunkTile, choice, problem, device)
    if isinstance(found, Refusal):
        return found
    tile = found.tile
    assert isinstance(tile, ChunkTile)
    moved = problem.tokens * problem.heads * problem.record_bytes
    why = f"chunks of {CHUNK} tokens do not wait for each other"
    first = Pass("chunks", moved, tile.chunks_us(problem, device), why)
    return Quote(
        best=found,
        bytes=problem.bytes,
        flops=problem.flops,
        problem=problem,
        scratch_bytes=problem.scratch_bytes,
        passes=(first,),
    )
