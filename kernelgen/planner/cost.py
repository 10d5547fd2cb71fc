"""Owns the cost model: bytes and operations of a region, and the time a device needs for them."""

from __future__ import annotations

from kernelgen.hw.device import Device
from kernelgen.ir.graph import Block, Role
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.planner.network import Region


def region_bytes(region: Region, sizes: Sizes) -> int:
    """Bytes read from outside (each value once) plus bytes written for outside."""
    block = region.network.block
    reads: dict[str, int] = {}
    writes = 0
    for node in region.nodes:
        types = block.input_types(node)
        for i, name in enumerate(node.inputs):
            base = region.base(name)
            if base in region.made and block.value[base].role is not Role.STATE:
                continue
            reads[base] = max(reads.get(base, 0), node.op.read_bytes(i, types, sizes))
        if any(out in region.outputs for out in node.outputs) or node.op.has(Trait.STATE_WRITE):
            writes += node.op.write_bytes(types, sizes)
    return sum(reads.values()) + writes


def region_flops(region: Region, sizes: Sizes) -> int:
    """Operations of all ops of the region."""
    block = region.network.block
    return sum(n.op.flops(block.input_types(n), sizes) for n in region.nodes)


def unavoidable_bytes(block: Block, sizes: Sizes) -> int:
    """What any plan must move: weights, caches and tables once, nothing in between."""
    reads: dict[str, int] = {}
    writes = 0
    for node in block.nodes:
        types = block.input_types(node)
        for i, name in enumerate(node.inputs):
            value = block.value[name]
            if value.role in (Role.WEIGHT, Role.TABLE) or (
                value.role is Role.STATE and node.op.has(Trait.STATE_READ)
            ):
                key = "cache" if value.role is Role.STATE else name
                reads[key] = max(reads.get(key, 0), node.op.read_bytes(i, types, sizes))
        if node.op.has(Trait.STATE_WRITE):
            writes += node.op.write_bytes(types, sizes)
    return sum(reads.values()) + writes


def time_us(
    bytes_: int, flops: int, device: Device, dtype: str, gb_s: float | None = None
) -> float:
    """`max(bytes / bandwidth, flops / rate)` in µs, without the cost of a launch."""
    bandwidth = gb_s if gb_s is not None else device.read_gb_s
    return max(bytes_ / (bandwidth * 1e3), flops / (device.tflops_for(dtype) * 1e6))
