"""Owns translation units: which flags each is compiled with, and the digests they are known by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kernelgen.compile.isa import Isa, isa
from kernelgen.compile.toolchain import CppToolchain
from kernelgen.core.digest import digest_file, digest_json

COMPILE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",  # fused multiply-adds only where a kernel asks: equal bits on every ISA
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-fvisibility=hidden",
)
LINK_FLAGS = (
    "-shared",
    "-Wl,-s",
    "-Wl,--exclude-libs,ALL",
    "-Wl,--as-needed",  # DT_NEEDED lists what is used, whatever the distribution's default
    "-Wl,--build-id=none",
    "-ldl",  # part of libc since 2.34, as pthread is
    "-lpthread",
)


@dataclass(frozen=True)
class Blob:
    """A file that a source takes in by `.incbin`, under the relative path `name`."""

    name: str
    path: Path


@dataclass(frozen=True)
class CppSource:
    """One translation unit: `name` its relative path, `isa` the only set to compile it for
    (empty: every set of the build), `blobs` the files that become part of its object."""

    name: str
    text: str
    isa: str = ""
    blobs: tuple[Blob, ...] = ()


@dataclass(frozen=True)
class Unit:
    """A source to be compiled for one set; `argv` are its flags, `key` its digest."""

    source: CppSource
    isa: Isa
    argv: tuple[str, ...]
    key: str

    @property
    def label(self) -> str:
        """What a progress display calls it."""
        return f"{self.source.name} {self.isa.name}"


def units_of(
    sources: Sequence[CppSource], headers: Mapping[str, str], set_name: str, tools: CppToolchain
) -> list[Unit]:
    """The units of the library for the set called `set_name`, by name; link order is this order."""
    blobs = {blob.name for source in sources for blob in source.blobs}
    _check_names([*blobs, *(source.name for source in sources)], headers)
    target = isa(set_name)
    ordered = sorted(sources, key=lambda source: source.name)
    return [_unit(s, target, headers, tools) for s in ordered if s.isa in ("", set_name)]


def link_key(units: Sequence[Unit], tools: CppToolchain) -> str:
    """Digest of the library linked from `units`."""
    return digest_json(["library", [unit.key for unit in units], LINK_FLAGS, tools.identity])


def _unit(source: CppSource, target: Isa, headers: Mapping[str, str], tools: CppToolchain) -> Unit:
    flags = (
        *COMPILE_FLAGS,
        *target.march,
        f'-DKG_ISA="{target.name}"',
        f"-frandom-seed={source.name}",  # names of unnamed things: by unit, not by chance
        "-I.",
    )
    # The include folder's path is the machine's own: it may reach neither digest nor object.
    place = (f"-ffile-prefix-map={tools.include}=tvm_ffi", f"-isystem{tools.include}")
    parts = ["object", source.name, source.text, dict(headers), flags, tools.identity]
    blobs = [[blob.name, digest_file(blob.path)] for blob in source.blobs]
    key = digest_json([*parts, blobs] if blobs else parts)
    return Unit(source, target, (*flags, *place), key)


def _check_names(names: Sequence[str], headers: Mapping[str, str]) -> None:
    every = [*names, *headers]
    for name in every:
        plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._/-]*", name)
        if not plain or ".." in PurePosixPath(name).parts or str(PurePosixPath(name)) != name:
            raise ValueError(f"{name!r} is not a plain relative path")
    if len(set(every)) != len(every):
        raise ValueError("two sources have the same name")
