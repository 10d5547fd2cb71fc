"""Owns the limits and peaks of sm_80 (Ampere, A100)."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.hw.device import Device, Rate

# Limits: CUDA C++ programming guide, table of compute capability 8.0 (164 KB shared a unit, 163 KB
# a block by opt-in, 65,536 registers, 2,048 threads). Counts and peaks: NVIDIA A100 data sheet,
# dense figures. No figure was measured here: dependent launch does not exist before 9.0, so a
# boundary is assumed to cost what it costs on an H200 without it.
A100 = Device(
    name="a100",
    label="NVIDIA A100 SXM, 80 GB",
    sm=80,
    arch="sm_80",
    units=108,
    memory_bytes=80 * 10**9,
    l2_bytes=40 << 20,
    shared_per_block_bytes=163 << 10,
    shared_per_unit_bytes=164 << 10,
    registers_per_unit=65536,
    max_registers_per_thread=255,
    max_threads_per_unit=2048,
    spec_gb_s=2039,
    rates=(
        Rate("bfloat16", 312),
        Rate("float16", 312),
        Rate("tfloat32", 156),
        Rate("float32", 19.5),
        Rate("int8", 624),
    ),
    launch_us=4.0,
    boundary_us=2.7,
    boundary_plain_us=2.7,
    features=frozenset({"cp_async"}),
    driver_names=("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"),
)

A100_40GB = replace(
    A100,
    name="a100-40gb",
    label="NVIDIA A100 SXM, 40 GB",
    memory_bytes=40 * 10**9,
    spec_gb_s=1555,
    driver_names=("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
)

DEVICES = (A100, A100_40GB)
