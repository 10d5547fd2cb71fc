"""Owns the instruction sets that a library is compiled for and the compiler flags of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernelgen.core.errors import UnsupportedError, quote


@dataclass(frozen=True)
class Isa:
    """One instruction set: `march` are compiler flags, `needs` the flags of /proc/cpuinfo that a
    machine must have to run it (the psABI level's tell-tale ones)."""

    name: str
    march: tuple[str, ...]
    needs: tuple[str, ...]


_V3 = ("avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

# Best last: a loader takes the last one that its machine has.
ISAS: Mapping[str, Isa] = MappingProxyType(
    {
        isa.name: isa
        for isa in (
            Isa("avx2", ("-march=x86-64-v3",), _V3),
            Isa("avx512", ("-march=x86-64-v4",), _V4),
            Isa("avx512_bf16", ("-march=x86-64-v4", "-mavx512bf16"), (*_V4, "avx512_bf16")),
        )
    }
)


def isa(name: str) -> Isa:
    """The instruction set called `name`; `UnsupportedError` lists the known ones.

    A GPU such as "sm_90" is one too: that of the host program beside its kernels, for which any
    x86-64 processor will do.
    """
    found = ISAS.get(name)
    if found is None and re.fullmatch(r"sm_\d{2,3}", name):
        found = Isa(name, ("-march=x86-64", "-fno-exceptions"), ())
    if found is None:
        raise UnsupportedError(
            f"instruction set {quote(name)} is not known", allowed=", ".join(ISAS)
        )
    return found


def machine_isas(cpuinfo: str) -> tuple[str, ...]:
    """Names of the instruction sets that a machine with this /proc/cpuinfo text can run."""
    line = next((text for text in cpuinfo.splitlines() if text.startswith("flags")), "")
    flags = set(line.partition(":")[2].split())
    return tuple(isa.name for isa in ISAS.values() if flags.issuperset(isa.needs))
