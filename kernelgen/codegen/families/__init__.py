"""Owns the kernel families: what each can cover, its knobs, its limits and its cost, by target."""

from __future__ import annotations

from kernelgen.codegen.families.cpp import CPP_FAMILIES
from kernelgen.codegen.families.triton import triton_families
from kernelgen.core.resources import tables_dir
from kernelgen.hw.device import Device
from kernelgen.planner.family import Catalogue
from kernelgen.tables import Tables


def catalogue(
    device: Device,
    tables: Tables | None = None,
    *,
    require_tuned: bool = False,
    invariant: bool = False,
) -> Catalogue:
    """The families that a device's plans may use; without `tables` those that ship with the
    compiler.

    `require_tuned`: kernels without a measurement are said to cost so much that a plan has one
    only where it must, with the verdict `refused`. The CPU has no tables. `invariant`: with
    families whose tile is the same for every size.
    """
    if device.is_cpu:
        return CPP_FAMILIES
    tables = tables if tables is not None else Tables(tables_dir())
    return triton_families(tables, require_tuned, invariant)
