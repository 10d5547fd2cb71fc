"""Owns what code generation hands on: kernel sources with their operands."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.planner.plan import Kernel


@dataclass(frozen=True)
class OperandInfo:
    """One operand of a kernel as a checker needs to know it."""

    role: str
    """`input`, `weight`, `output`, `cache`, `step`, `scratch` or `counters`"""
    name: str
    dtype: str
    shape: tuple[int | str, ...]
    """constants, and `T` or `B`; the shape of a weight is that of the checkpoint, before its
    layout"""
    layout: str = "rows"


@dataclass(frozen=True)
class KernelSource:
    """One generated kernel."""

    kernel: Kernel
    path: str
    text: str
    signature: tuple[OperandInfo, ...]
