"""Owns the CPU target: one fixed machine, so that plans do not depend on the builder's."""

from __future__ import annotations

from kernelgen.hw.device import Device, Rate

# Two cores of a current server (Zen 4 or Sapphire Rapids class at 2.6 GHz): 16 float32
# multiply-adds a cycle and core (two 256-bit units, or one of 512) are 2 × 2.6 × 32 = 166 GFLOP/s;
# the bfloat16 dot product does two a lane. Caches: 1 MiB of L2 a core, 32 MiB shared. Bandwidth
# is the best that `kernelgen doctor` read on such a virtual machine (Zen 4: 34 GB/s with two
# threads, 20 with one; 16 to 27 while others used it), of which a plan assumes its usual share.
# Latencies are round figures: 1 µs for a barrier that spins, 5 µs for the call of a step.
GENERIC = Device(
    name="generic",
    label="two x86-64 cores with AVX2 or AVX-512",
    sm=0,
    arch="x86-64-v3",
    units=2,
    memory_bytes=16 * 10**9,
    l2_bytes=32 << 20,
    shared_per_block_bytes=1 << 20,
    shared_per_unit_bytes=1 << 20,
    registers_per_unit=16,  # AVX2; AVX-512 has 32
    max_registers_per_thread=16,
    max_threads_per_unit=1,
    spec_gb_s=34,
    rates=(Rate("float32", 0.166), Rate("bfloat16", 0.333)),
    launch_us=5.0,
    boundary_us=1.0,
    boundary_plain_us=1.0,
    features=frozenset({"avx2", "fma"}),
)

DEVICES = (GENERIC,)
