"""Owns the limits and peaks of sm_89 (Ada: L40S, L4, RTX 4090)."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.hw.device import Device, Rate

# Limits: CUDA C++ programming guide, table of compute capability 8.9 (100 KB shared a unit, 99 KB
# a block by opt-in, 65,536 registers, 1,536 threads). Counts and peaks: NVIDIA data sheets (L40S,
# L4) and the Ada white paper (RTX 4090), dense and with float32 accumulation. The L2 sizes are
# what the driver reports. Nothing measured here; boundaries as on sm_80.
L40S = Device(
    name="l40s",
    label="NVIDIA L40S, 48 GB",
    sm=89,
    arch="sm_89",
    units=142,
    memory_bytes=48 * 10**9,
    l2_bytes=96 << 20,
    shared_per_block_bytes=99 << 10,
    shared_per_unit_bytes=100 << 10,
    registers_per_unit=65536,
    max_registers_per_thread=255,
    max_threads_per_unit=1536,
    spec_gb_s=864,
    rates=(
        Rate("bfloat16", 362),
        Rate("float16", 362),
        Rate("tfloat32", 183),
        Rate("float32", 91.6),
        Rate("float8_e4m3", 733),
        Rate("int8", 733),
    ),
    launch_us=4.0,
    boundary_us=2.7,
    boundary_plain_us=2.7,
    features=frozenset({"cp_async", "fp8"}),
    driver_names=("NVIDIA L40S",),
)

L4 = replace(
    L40S,
    name="l4",
    label="NVIDIA L4, 24 GB",
    units=58,
    memory_bytes=24 * 10**9,
    l2_bytes=48 << 20,
    spec_gb_s=300,
    rates=(
        Rate("bfloat16", 121),
        Rate("float16", 121),
        Rate("tfloat32", 60),
        Rate("float32", 30.3),
        Rate("float8_e4m3", 242),
        Rate("int8", 242),
    ),
    driver_names=("NVIDIA L4",),
)

# GeForce halves the tensor rate when it accumulates in float32.
RTX4090 = replace(
    L40S,
    name="rtx4090",
    label="NVIDIA GeForce RTX 4090, 24 GB",
    units=128,
    memory_bytes=24 * 10**9,
    l2_bytes=72 << 20,
    spec_gb_s=1008,
    rates=(
        Rate("bfloat16", 165.2),
        Rate("float16", 165.2),
        Rate("tfloat32", 82.6),
        Rate("float32", 82.6),
        Rate("float8_e4m3", 330.3),
        Rate("int8", 660.6),
    ),
    driver_names=("NVIDIA GeForce RTX 4090",),
)

DEVICES = (L40S, L4, RTX4090)
