"""Owns the limits and peaks of sm_103 (Blackwell Ultra: B300, GB300)."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.hw.device import Device, Rate

# Limits: CUDA C++ programming guide, table of compute capability 10.3 (as 10.0). Peaks: NVIDIA
# DGX B300 and GB300 NVL72 data sheets divided by their GPUs, dense. Unit counts and L2 are what
# drivers report in public logs. Nothing measured here: latencies are those of an H200.
B300 = Device(
    name="b300",
    label="NVIDIA B300, 288 GB",
    sm=103,
    arch="sm_103a",
    units=148,
    memory_bytes=288 * 10**9,
    l2_bytes=126 << 20,
    shared_per_block_bytes=227 << 10,
    shared_per_unit_bytes=228 << 10,
    registers_per_unit=65536,
    max_registers_per_thread=255,
    max_threads_per_unit=2048,
    spec_gb_s=8000,
    rates=(
        Rate("bfloat16", 2250),
        Rate("float16", 2250),
        Rate("tfloat32", 1125),
        Rate("float32", 75),
        Rate("float8_e4m3", 4500),
        Rate("float4_e2m1", 13500),
    ),
    launch_us=4.0,
    boundary_us=1.2,
    boundary_plain_us=2.7,
    features=frozenset({"cp_async", "fp8", "fp4", "mx", "pdl", "tma", "tcgen05", "cluster"}),
    driver_names=("NVIDIA B300", "NVIDIA B300 SXM6 AC"),
)

GB300 = replace(
    B300,
    name="gb300",
    label="NVIDIA GB300, 288 GB",
    units=152,
    rates=(
        Rate("bfloat16", 2500),
        Rate("float16", 2500),
        Rate("tfloat32", 1250),
        Rate("float32", 80),
        Rate("float8_e4m3", 5000),
        Rate("float4_e2m1", 15000),
    ),
    driver_names=("NVIDIA GB300",),
)

DEVICES = (B300, GB300)
