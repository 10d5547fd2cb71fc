"""Owns the platform tag: which libraries a wheel may lean on and the oldest glibc that runs it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernelgen.core.elf import MACHINE_X86_64, SharedLibrary, parse_library
from kernelgen.core.errors import ProblemList, UnsupportedError

# What every Linux of the tag has (PEP 600), and libgomp, which torch brings under this soname.
# libtvm_ffi.so is loaded by the runtime before any library of ours.
_PROVIDED = frozenset(
    {
        "ld-linux-x86-64.so.2",
        "libc.so.6",
        "libdl.so.2",
        "libgcc_s.so.1",
        "libgomp.so.1",
        "libm.so.6",
        "libpthread.so.0",
        "librt.so.1",
        "libstdc++.so.6",
        "libtvm_ffi.so",
    }
)
_GLIBC_FLOOR = 17  # manylinux2014, the oldest that PEP 600 names as 2_X for this architecture
# libstdc++ 3.4.N first shipped with distributions of glibc 2.M: (N, M), ascending.
_LIBSTDCXX = ((19, 17), (22, 24), (25, 28), (28, 31), (29, 34), (30, 35), (32, 38), (33, 39))


def platform_tag(libraries: Mapping[str, bytes]) -> str:
    """The tag that fits all `libraries` (name → content), e.g. "manylinux_2_34_x86_64".

    `UnsupportedError` lists everything that keeps them from running elsewhere: a library that the
    platform does not promise, a search path, an undefined symbol, another machine.
    """
    problems = ProblemList("libraries of the wheel", UnsupportedError)
    minor = _GLIBC_FLOOR
    for name, data in sorted(libraries.items()):
        library = parse_library(data, source=name)
        _check(name, library, problems)
        for owner, version in library.versions:
            minor = max(minor, _floor_of(name, owner, version, problems))
    problems.raise_if_any()
    return f"manylinux_2_{minor}_x86_64"


def _check(name: str, library: SharedLibrary, problems: ProblemList) -> None:
    if library.machine != MACHINE_X86_64:
        problems.add(f"is for ELF machine {library.machine}", where=name, allowed="x86_64")
    for needed in library.needed:
        if needed not in _PROVIDED:
            problems.add(f"needs {needed}", where=name, allowed=", ".join(sorted(_PROVIDED)))
    for path in library.search_paths:
        problems.add(f"has the library search path {path}", where=name, allowed="none")
    for symbol in library.undefined:
        if not symbol.startswith("TVMFFI"):
            problems.add(f"leaves {symbol} undefined", where=name, allowed="symbols of tvm-ffi")


def _floor_of(name: str, owner: str, version: str, problems: ProblemList) -> int:
    if match := re.fullmatch(r"GLIBC_2\.(\d+)(\.\d+)?", version):
        return int(match[1])
    if match := re.fullmatch(r"GLIBCXX_3\.4(?:\.(\d+))?", version):
        wanted = int(match[1] or 0)
        for release, glibc_minor in _LIBSTDCXX:
            if wanted <= release:
                return glibc_minor
        problems.add(f"needs {version} of {owner}", where=name, allowed="up to GLIBCXX_3.4.33")
    if version == "GLIBC_PRIVATE":
        problems.add(f"uses private symbols of {owner}", where=name)
    return _GLIBC_FLOOR
