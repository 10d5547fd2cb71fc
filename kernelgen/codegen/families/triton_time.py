"""Owns the time model of GPU kernels: memory, caches, arithmetic and latency of a grid of blocks."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.codegen.families.triton_block import Footprint, ceil_div
from kernelgen.hw.device import Device

LATENCY_US = 0.85
"""a load from memory under load. On an H200 a GEMV of 4096 × 12288 takes 24 dependent steps of 16 KiB in 25.1 µs."""
NEAR_LATENCY_US = 0.35
"""a load of what an earlier kernel has just written: it is in the L2 cache"""
REDUCE_US = 0.3
"""a sum over the threads of a block, and what is stored of it"""
UNIT_GB_S = 60.0
"""what one multiprocessor draws at most through the L2 cache: about 32 bytes a clock. Assumed, not measured."""
VECTOR_SHARE = 0.5
"""of the multiply-add rate, for code that also converts, masks and moves. Assumed."""
TICKET_US = 1.2
"""partial results to memory, an atomic ticket, and the last block that finds them all"""


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
    ahead: bool = False
    """whether the first round reads only weights: with dependent launch it starts before the wait"""
    lead_us: float = 0.0
    """what a block does between the wait and its first use of weights"""
    tail_us: float = 0.0
    """what a block does after its last load; nothing hides that of the last block"""


@dataclass(frozen=True)
class Demand:
    """What all blocks together ask for."""

    memory_bytes: int
    cache_bytes: int = 0
    """through the L2 cache, memory's part included"""
    vector_ops: float = 0.0
    """multiply-adds, conversions and other float32 instructions"""
    tensor_flops: float = 0.0
    tensor_dtype: str = "bfloat16"
    tensor_share: float = 1.0
    """of the rate that the device reaches in a large product"""
    bandwidth_share: float = 1.0
    copies: bool = False
    """whether about half of the traffic is writes"""
    longest: float = 1.0
    """work of the largest block in units of the mean one"""


@dataclass(frozen=True)
class Timing:
    """Time between the boundary before a kernel and its end, and the parts of which the largest decides."""

    us: float
    parts: tuple[tuple[str, float], ...]
    """largest first"""

    @property
    def latency_us(self) -> float:
        """The chain of dependent loads: the further below the rest, the more loads are in flight."""
        return dict(self.parts)["latency"]

    def told(self) -> tuple[str, ...]:
        """The parts above a tenth of the largest, in words."""
        largest = self.parts[0][1]
        return tuple(f"{name} {us:.2f} µs" for name, us in self.parts if us >= 0.1 * largest)


def timing(grid: Grid, demand: Demand, device: Device) -> Timing:
    """The largest of: bytes over bandwidth, the busiest multiprocessor's traffic and arithmetic, and the chain of loads."""
    resident = max(1, grid.footprint.resident(device))
    busiest = ceil_div(grid.blocks, device.units)  # blocks of the fullest multiprocessor
    crowding = max(busiest, demand.longest) * device.units / grid.blocks
    bandwidth = (device.copy_gb_s if demand.copies else device.read_gb_s) * demand.bandwidth_share
    through = max(demand.cache_bytes, demand.memory_bytes)
    vector = device.tflops_for("float32") / 2 * VECTOR_SHARE
    flows = {
        "memory": demand.memory_bytes / (bandwidth * 1e3),
        "L2 cache": crowding * through / (UNIT_GB_S * device.units * 1e3),
        "vector units": crowding * demand.vector_ops / (vector * 1e6),
    }
    if demand.tensor_flops:
        rate = device.tflops_for(demand.tensor_dtype) * demand.tensor_share
        flows["tensor cores"] = crowding * demand.tensor_flops / (rate * 1e6)
    # Nothing flows before the first load is there, unless it started during the kernel before.
    early = grid.ahead and device.has("pdl")
    ramp = 0.0 if early else LATENCY_US + grid.lead_us
    parts = {name: us + ramp for name, us in flows.items()}
    parts["latency"] = _latency(grid, resident, device) - (LATENCY_US if early else 0.0)
    ordered = tuple(sorted(parts.items(), key=lambda p: -p[1]))
    return Timing(ordered[0][1] + grid.tail_us, ordered)


def _latency(grid: Grid, resident: int, device: Device) -> float:
    """Waves of blocks, each a chain of loads; the last wave's tail is counted elsewhere."""
    waves = ceil_div(grid.blocks, device.units * resident)
    loads = ceil_div(grid.steps, grid.in_flight) * LATENCY_US
    chain = max(loads, LATENCY_US + grid.steps * grid.step_us)
    return waves * (chain + grid.lead_us) + (waves - 1) * grid.tail_us


def boundary(device: Device) -> str:
    """What stands between two kernels, in words."""
    how = "dependent launch" if device.has("pdl") else "no dependent launch before sm_90"
    return f"boundary {device.boundary_us:g} µs ({how})"
