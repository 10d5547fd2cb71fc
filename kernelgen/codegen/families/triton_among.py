"""Owns what a launch costs a step beyond the time of its own chain: kernels of other kinds come
before it.
"""

from __future__ import annotations

from kernelgen.hw.device import Device

LAUNCH_US = 0.5
"""each launch: small ones of 0.9 to 2.1 µs took 1.2 to 4.9 in steps of an H200 (2026-12-01), of
which what follows them wins back a part"""
LATE_US = 1.5
"""weights that are asked for after the wait, where those of rings come before it: in steps full of
rings such products of 4.5 and 6.1 µs took 8.6 and 8.8; no ring took more than 1.4 longer"""
_LATE = frozenset({"skinny", "sliced", "clustered"})


def among_others_us(family: str, phase: str, launches: int, device: Device) -> float:
    """For so many launches of a kernel; nothing where launches do not overlap anyway."""
    if not device.has("pdl"):
        return 0.0
    late = phase == "decode" and family in _LATE and device.has("wgmma")
    return LAUNCH_US * launches + LATE_US * late
