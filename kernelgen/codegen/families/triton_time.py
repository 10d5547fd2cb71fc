"""Owns the time model of GPU kernels: memory, caches, arithmetic and latency of a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelgen.codegen.families.triton_block import Footprint, ceil_div
from kernelgen.hw.device import Device

# Fitted to one H200 (2026-11-30; Triton 3.6, kernels in a captured chain with dependent launch,
# weights cold in L2): 7 one-row shapes × 12 tiles, 5 few-row shapes × 3 row counts × 8 tiles.
# `tests/cpu/test_families_gpu_time.py` holds figures and the error of the model.
LATENCY_US = 0.9
"""a load from memory while others load too; 0.53 when a multiprocessor loads alone"""
NEAR_LATENCY_US = 0.35
"""a load of what an earlier kernel has just written: it is in the L2 cache"""
REDUCE_US = 0.2
"""a sum over the threads of a block"""
UNIT_GB_S = 85.0
"""what one multiprocessor draws through the L2 cache while others are idle"""
CACHE_GB_S_PER_UNIT = 62.0
"""what each draws while all do: 8.2 TB/s together"""
VECTOR_SHARE = 0.5
"""of the multiply-add rate, for code that also converts, masks and moves"""
TICKET_US = 1.5
"""partial results to memory, an atomic ticket, and the last block that finds them all"""
COLD_US = LATENCY_US + NEAR_LATENCY_US
"""what a kernel alone takes longer than in a step: its inputs come from memory, nothing overlaps
with its start"""
_SOFTNESS = 3
"""exponent by which the two limits of loads add up: near saturation latency grows"""
# Fitted to 649 tiles of one-row products of five models on one H200 (2026-12-01).
_WAVE_SOFTNESS = 1.43
"""the same for one wave of blocks"""
_START_US = 0.27
"""beyond the boundary"""
_BETWEEN_US = 1.14
"""from one wave of blocks to the next"""
_EXPOSED = 1.8
"""how much longer rounds are in a wave that leaves multiprocessors partly idle"""


@dataclass(frozen=True)
class Grid:
    """Equal blocks that run the same loop."""

    blocks: int
    footprint: Footprint
    steps: int
    """dependent rounds of loads in one block"""
    in_flight: int = 1
    """rounds whose loads are under way at a time"""
    step_us: float = 0.0
    """arithmetic of one round that the next one has to wait for"""
    early_us: float = 0.0
    """loads that do not depend on the kernel before: dependent launch hides them"""
    lead_us: float = 0.0
    """what a block does between the wait and its loop, beyond one load (which the boundary
    contains)"""
    chain_us: float | None = None
    """all rounds of one block, where blocks are so alike that a last wave of few takes as long as a
    full one; None: waves run into each other"""
    tail_us: float = 0.0
    """what a block does after its loop, beyond one sum and one store; nothing hides that of the
    last block"""


@dataclass(frozen=True)
class Demand:
    """What all blocks together ask for."""

    memory_bytes: int
    cache_bytes: int = 0
    """through the L2 cache, memory's part included"""
    vector_ops: float = 0.0
    """multiply-adds, conversions and other float32 instructions, beside the loads"""
    serial_ops: float = 0.0
    """the same, but between a load and its use: they add to the time"""
    tensor_flops: float = 0.0
    tensor_dtype: str = "bfloat16"
    tensor_share: float = 1.0
    """of the rate that the device reaches in a large product"""
    tensor_idle_us: float = 0.0
    """when tensor cores have nothing to do, because no other block is there to use them"""
    bandwidth_share: float = 1.0
    copies: bool = False
    """whether about half of the traffic is writes"""
    longest: float = 1.0
    """work of the largest block in units of the mean one"""


@dataclass(frozen=True)
class Timing:
    """Time from the boundary before a kernel to its end."""

    us: float
    hidden: tuple[tuple[str, float], ...]
    """limits that hide each other, largest first: it decides"""
    exposed: tuple[tuple[str, float], ...]
    """what comes on top, because nothing runs beside it"""

    @property
    def latency_us(self) -> float:
        """The chain of dependent loads: the further below the rest, the more are in flight."""
        return dict(self.hidden)["latency"]

    def told(self) -> tuple[str, ...]:
        """The sum in words, then the hidden limits that are not far below the largest."""
        (name, most), *others = self.hidden
        added = "".join(f" + {what} {us:.2f}" for what, us in self.exposed if us >= 0.005)
        beside = ", ".join(f"{what} {us:.2f}" for what, us in others if us >= 0.25 * most)
        return (f"{name} {most:.2f}{added} µs", *([f"hidden: {beside} µs"] if beside else []))


def timing(grid: Grid, demand: Demand, device: Device) -> Timing:
    """The largest of memory with latency, L2 traffic and arithmetic, then what nothing hides."""
    resident = max(1, grid.footprint.resident(device))
    busiest = ceil_div(grid.blocks, device.units)  # blocks of the fullest multiprocessor
    crowding = max(busiest, demand.longest) * device.units / grid.blocks
    bandwidth = (device.copy_gb_s if demand.copies else device.read_gb_s) * demand.bandwidth_share
    through = max(demand.cache_bytes, demand.memory_bytes) / device.units / 1e3
    vector = crowding / (device.tflops_for("float32") / 2 * VECTOR_SHARE * 1e6)
    memory = demand.memory_bytes / (bandwidth * 1e3)
    if grid.chain_us is None:
        latency = _latency(grid, resident, device)
        loads = (memory**_SOFTNESS + latency**_SOFTNESS) ** (1 / _SOFTNESS)
    else:
        latency = ceil_div(grid.blocks, device.units * resident) * grid.chain_us
        loads = _waves(grid.chain_us, memory, grid.blocks / (device.units * resident))
    hidden = {
        "memory": loads if memory >= latency else memory,
        "latency": loads if latency > memory else latency,
        "L2 cache": max(1 / CACHE_GB_S_PER_UNIT, crowding / UNIT_GB_S) * through,
        "vector units": vector * demand.vector_ops,
    }
    if demand.tensor_flops:
        rate = device.tflops_for(demand.tensor_dtype) * demand.tensor_share
        busy = crowding * demand.tensor_flops / (rate * 1e6)
        hidden["tensor cores"] = busy + demand.tensor_idle_us
    exposed = {
        "preparing rows": vector * demand.serial_ops,
        "first loads": grid.lead_us + (0.0 if device.has("pdl") else grid.early_us),
        "finish": grid.tail_us,
    }
    us = max(hidden.values()) + sum(exposed.values())
    return Timing(us, tuple(sorted(hidden.items(), key=lambda p: -p[1])), tuple(exposed.items()))


def _latency(grid: Grid, resident: int, device: Device) -> float:
    """Waves of blocks, each a chain of loads; the first load of the first wave is part of the
    boundary.
    """
    waves = ceil_div(grid.blocks, device.units * resident)
    loads = ceil_div(grid.steps, grid.in_flight) * LATENCY_US
    chain = max(loads, LATENCY_US + grid.steps * grid.step_us)
    return waves * chain + (waves - 1) * (grid.lead_us + grid.tail_us + REDUCE_US) - LATENCY_US


def _waves(chain_us: float, memory_us: float, waves: float) -> float:
    """Full waves, then what is left of the blocks: each is as long as its bytes or its chain."""
    full, rest = divmod(waves, 1.0)
    total = _START_US + max(0.0, full - 1) * _BETWEEN_US
    for share, rounds in ((full / waves, full), (rest / waves, _EXPOSED * math.ceil(rest))):
        bytes_us, loads_us = memory_us * share, rounds * chain_us
        total += (bytes_us**_WAVE_SOFTNESS + loads_us**_WAVE_SOFTNESS) ** (1 / _WAVE_SOFTNESS)
    return total + _BETWEEN_US * (full >= 1 and rest > 0)


def boundary(device: Device) -> str:
    """What stands between two kernels, in words."""
    how = "dependent launch" if device.has("pdl") else "no dependent launch before sm_90"
    return f"boundary {device.boundary_us:g} µs ({how})"
