"""Owns `KernelImage`: what is known of one compiled kernel besides its machine code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BoxImage:
    """How a descriptor's blocks come to shared memory, in the driver's own numbers."""

    element: int
    """CUtensorMapDataType"""
    swizzle: int
    """CUtensorMapSwizzle"""
    rows: int
    columns: int
    """of one copy; several make a block where its rows are longer than the swizzle's 128 bytes"""


@dataclass(frozen=True)
class KernelImage:
    """One cubin as its launcher and the build's report need it."""

    symbol: str
    sm: int
    """compute capability × 10"""
    arguments: tuple[str, ...]
    """types of the run-time arguments; two hidden pointers to scratch follow them"""
    threads: int
    """of a block; may be more than the unit asked for"""
    shared_bytes: int
    """dynamic shared memory of a block, what its cluster exchanges included"""
    pdl: bool
    cooperative: bool
    registers: int
    """of a thread"""
    stack_bytes: int
    """local memory of a thread, spills included"""
    spill_bytes: int
    """stores and loads of spilled registers in the code of a thread"""
    tensor_columns: int
    """of tensor memory (sm_100 and later)"""
    cluster: int
    """blocks of a cluster; 1: none"""
    scratch_bytes: int
    """global memory that each block asks the launcher for"""
    ptx_sha256: str
    """the reproducible part: some assemblers give one of several codes for equal PTX"""
    triton: str
    assembler: str
    boxes: tuple[BoxImage, ...] = ()
    """of the arguments that are descriptors, in order"""
