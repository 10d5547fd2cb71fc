"""Owns the limits and peaks of sm_90 (Hopper: H200, H100, H20)."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.hw.device import Device, Rate

# Limits: CUDA C++ programming guide, table of compute capability 9.0 (228 KB shared a unit, 227 KB
# a block by opt-in, 65,536 registers, 2,048 threads). Peaks: NVIDIA H200 data sheet, dense.
# Measured on one H200 (driver of CUDA 13.0, torch 2.11, Triton 3.6): 132 units and 60 MB of L2 as
# the driver reports them; reads 4.59 TB/s (a GEMV of 151,936 × 4,096 bf16), copies 4.23 TB/s
# (2 GiB, read + written), 788 TFLOP/s bf16 (8192³), 4.0 µs for the smallest captured kernel with a
# flushed L2, boundaries 1.2 µs with programmatic dependent launch and 2.7 µs without.
H200 = Device(
    name="h200",
    label="NVIDIA H200 SXM, 141 GB",
    sm=90,
    arch="sm_90a",
    units=132,
    memory_bytes=141 * 10**9,
    l2_bytes=60 << 20,
    shared_per_block_bytes=227 << 10,
    shared_per_unit_bytes=228 << 10,
    registers_per_unit=65536,
    max_registers_per_thread=255,
    max_threads_per_unit=2048,
    spec_gb_s=4800,
    measured_read_gb_s=4590,
    measured_copy_gb_s=4230,
    rates=(
        Rate("bfloat16", 989, 788),
        Rate("float16", 989),
        Rate("tfloat32", 494),
        Rate("float32", 67),
        Rate("float8_e4m3", 1979),
        Rate("int8", 1979),
    ),
    launch_us=4.0,
    boundary_us=1.2,
    boundary_plain_us=2.7,
    latency_measured=True,
    features=frozenset({"cp_async", "fp8", "pdl", "tma", "wgmma", "cluster"}),
    driver_names=("NVIDIA H200",),
)

_UNMEASURED = replace(
    H200,
    measured_read_gb_s=None,
    measured_copy_gb_s=None,
    latency_measured=False,
    rates=tuple(replace(rate, measured_tflops=None) for rate in H200.rates),
)

# NVIDIA H100 data sheet, SXM column; 50 MB of L2 in the Hopper white paper.
H100 = replace(
    _UNMEASURED,
    name="h100",
    label="NVIDIA H100 SXM, 80 GB",
    memory_bytes=80 * 10**9,
    l2_bytes=50 << 20,
    spec_gb_s=3350,
    driver_names=("NVIDIA H100 80GB HBM3",),
)

# Hopper white paper, PCIe column.
H100_PCIE = replace(
    _UNMEASURED,
    name="h100-pcie",
    label="NVIDIA H100 PCIe, 80 GB",
    units=114,
    memory_bytes=80 * 10**9,
    l2_bytes=50 << 20,
    spec_gb_s=2039,
    rates=(
        Rate("bfloat16", 756),
        Rate("float16", 756),
        Rate("tfloat32", 378),
        Rate("float32", 51),
        Rate("float8_e4m3", 1513),
        Rate("int8", 1513),
    ),
    driver_names=("NVIDIA H100 PCIe",),
)

# Published figures of the H20: the memory of an H100, a seventh of its products.
H20 = replace(
    _UNMEASURED,
    name="h20",
    label="NVIDIA H20, 96 GB",
    units=78,
    memory_bytes=96 * 10**9,
    spec_gb_s=4000,
    rates=(
        Rate("bfloat16", 148),
        Rate("float16", 148),
        Rate("tfloat32", 74),
        Rate("float32", 44),
        Rate("float8_e4m3", 296),
        Rate("int8", 296),
    ),
    driver_names=("NVIDIA H20",),
)

DEVICES = (H200, H100, H100_PCIE, H20)
