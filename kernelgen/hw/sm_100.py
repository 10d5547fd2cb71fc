"""Owns the limits and peaks of sm_100 (Blackwell data centre: B200, GB200)."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.hw.device import Device, Rate

# Limits: CUDA C++ programming guide, table of compute capability 10.0 (228 KB shared a unit,
# 227 KB a block by opt-in, 65,536 registers, 2,048 threads). Peaks: NVIDIA DGX B200 and GB200 NVL72
# data sheets divided by their GPUs, dense. Unit counts and L2 are what drivers report in public
# logs. Nothing measured here: latencies are those of an H200.
B200 = Device(
    name="b200",
    label="NVIDIA B200, 180 GB",
    sm=100,
    arch="sm_100a",
    units=148,
    memory_bytes=180 * 10**9,
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
        Rate("float4_e2m1", 9000),
    ),
    launch_us=4.0,
    boundary_us=1.2,
    boundary_plain_us=2.7,
    features=frozenset({"cp_async", "fp8", "fp4", "mx", "pdl", "tma", "tcgen05", "cluster"}),
    driver_names=("NVIDIA B200",),
)

GB200 = replace(
    B200,
    name="gb200",
    label="NVIDIA GB200, 186 GB",
    units=152,
    memory_bytes=186 * 10**9,
    rates=(
        Rate("bfloat16", 2500),
        Rate("float16", 2500),
        Rate("tfloat32", 1250),
        Rate("float32", 80),
        Rate("float8_e4m3", 5000),
        Rate("float4_e2m1", 10000),
    ),
    driver_names=("NVIDIA GB200",),
)

DEVICES = (B200, GB200)
