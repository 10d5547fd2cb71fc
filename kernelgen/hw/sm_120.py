"""Owns the limits and peaks of sm_120 (Blackwell workstation: RTX 5090, RTX PRO 6000)."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.hw.device import Device, Rate

# Limits: CUDA C++ programming guide, table of compute capability 12.0 (100 KB shared a unit, 99 KB
# a block by opt-in, 65,536 registers, 1,536 threads; no wgmma, no tensor memory). Counts and peaks:
# RTX Blackwell and RTX PRO white papers, dense and with float32 accumulation, which a GeForce does
# at half the rate. Nothing measured here: latencies are those of an H200.
RTX5090 = Device(
    name="rtx5090",
    label="NVIDIA GeForce RTX 5090, 32 GB",
    sm=120,
    arch="sm_120a",
    units=170,
    memory_bytes=32 * 10**9,
    l2_bytes=96 << 20,
    shared_per_block_bytes=99 << 10,
    shared_per_unit_bytes=100 << 10,
    registers_per_unit=65536,
    max_registers_per_thread=255,
    max_threads_per_unit=1536,
    spec_gb_s=1792,
    rates=(
        Rate("bfloat16", 209.5),
        Rate("float16", 209.5),
        Rate("tfloat32", 104.8),
        Rate("float32", 104.8),
        Rate("float8_e4m3", 419),
        Rate("float4_e2m1", 1676),
    ),
    launch_us=4.0,
    boundary_us=1.2,
    boundary_plain_us=2.7,
    features=frozenset({"cp_async", "fp8", "fp4", "mx", "pdl", "tma"}),
    driver_names=("NVIDIA GeForce RTX 5090",),
)

RTX_PRO_6000 = replace(
    RTX5090,
    name="rtx-pro-6000",
    label="NVIDIA RTX PRO 6000 Blackwell, 96 GB",
    units=188,
    memory_bytes=96 * 10**9,
    l2_bytes=128 << 20,
    rates=(
        Rate("bfloat16", 503.8),
        Rate("float16", 503.8),
        Rate("tfloat32", 251.9),
        Rate("float32", 126),
        Rate("float8_e4m3", 1007.6),
        Rate("float4_e2m1", 2015.2),
    ),
    driver_names=(
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    ),
)

DEVICES = (RTX5090, RTX_PRO_6000)
