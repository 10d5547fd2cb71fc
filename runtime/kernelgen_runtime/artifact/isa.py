"""Owns choosing the library of an artifact that this processor can run."""

import os
from pathlib import Path

from ..errors import UnsupportedCpuError, shown
from .manifest import Library

_V3 = frozenset(("avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# Best first: what /proc/cpuinfo must show before a library compiled for that name may be loaded.
REQUIRED_FLAGS: dict[str, frozenset[str]] = {
    "avx512_bf16": _V4 | {"avx512_bf16"},
    "avx512": _V4,
    "avx2": _V3,
}
OVERRIDE = "KERNELGEN_ISA"


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the feature flags of the first processor listed in `path`; none if it has none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "flags":
                    return frozenset(value.split())
    except OSError:
        pass
    return frozenset()


def choose_library(
    libraries: tuple[Library, ...], flags: frozenset[str], override: str | None = None
) -> Library:
    """Return the best of `libraries` for a processor with `flags`.

    `override` (environment variable KERNELGEN_ISA) asks for one by name. Raises
    UnsupportedCpuError where none can run here.
    """
    by_isa = {library.isa: library for library in libraries}
    have = ", ".join(by_isa) or "none"
    if override is not None:
        if override not in by_isa:
            raise UnsupportedCpuError(f"{OVERRIDE}={shown(override)}: this artifact has {have}")
        missing = sorted(REQUIRED_FLAGS.get(override, frozenset()) - flags)
        if missing:
            raise UnsupportedCpuError(
                f"{OVERRIDE}={override}: this processor lacks {' '.join(missing)}"
            )
        return by_isa[override]
    for isa, required in REQUIRED_FLAGS.items():
        if isa in by_isa and required <= flags:
            return by_isa[isa]
    lacks = " ".join(sorted(_V3 - flags)) or "none of those of AVX2"
    raise UnsupportedCpuError(
        f"this processor cannot run any library of the artifact ({have}): it lacks {lacks}; "
        "kernelgen needs AVX2 at least"
    )


def choose_here(libraries: tuple[Library, ...]) -> Library:
    """Return the best of `libraries` for the processor this process runs on."""
    return choose_library(libraries, cpu_flags(), os.environ.get(OVERRIDE) or None)
