"""Owns the kernel families: what each can cover, its knobs, its limits and its cost, by target."""

from __future__ import annotations

from kernelgen.codegen.families.cpp import CPP_FAMILIES

from kernelgen.hw.device import Device
from kernelgen.planner.family import Catalogue


def catalogue(device: Device) -> Catalogue:
    """The families that a device's plans may use."""
    return CPP_FAMILIES
