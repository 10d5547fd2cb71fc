"""Owns the summary of a build: what it is, its libraries, its kernels and one kernel's source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelgen.core.elf import parse_library
from kernelgen.core.errors import UsageError, quote
from kernelgen.core.jsonio import JsonValue
from kernelgen.pack.bundle import library_paths
from kernelgen.pack.contents import Contents

KERNELS = "kernels.json"


@dataclass(frozen=True)
class LibraryFacts:
    """One compiled library; `glibc` is the newest version symbol that it needs."""

    path: str
    bytes: int
    needed: tuple[str, ...]
    glibc: str
    exports: tuple[str, ...]


@dataclass(frozen=True)
class KernelFacts:
    """One kernel as `kernels.json` lists it."""

    name: str
    family: str
    variant: str
    source: str
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """What `inspect` prints; `fields` are the manifest's short top-level values."""

    source: str
    fields: Mapping[str, str]
    files: int
    bytes: int
    libraries: tuple[LibraryFacts, ...]
    kernels: tuple[KernelFacts, ...]


def summarise(contents: Contents) -> Summary:
    """The summary of a wheel or build folder read by `read_contents`."""
    plain = (str, int, float, bool)
    return Summary(
        source=contents.source,
        fields={k: str(v) for k, v in contents.manifest.items() if isinstance(v, plain)},
        files=len(contents.files),
        bytes=sum(len(data) for data in contents.files.values()),
        libraries=tuple(_library(contents, path) for path in library_paths(contents.manifest)),
        kernels=kernels(contents),
    )


def kernels(contents: Contents) -> tuple[KernelFacts, ...]:
    """The kernels that `kernels.json` lists; none when the build has no such file."""
    if KERNELS not in contents.files:
        return ()
    entries = contents.json(KERNELS)
    if not isinstance(entries, list):
        raise UsageError("must hold an array", where=f"{contents.source}: {KERNELS}")
    return tuple(_kernel(entry) for entry in entries if isinstance(entry, dict))


def kernel_source(contents: Contents, name: str) -> str:
    """Source text of the kernel called `name`; `UsageError` lists what there is."""
    known = {kernel.name: kernel for kernel in kernels(contents)}
    if name not in known:
        raise UsageError(
            f"holds no kernel {quote(name)}",
            where=contents.source,
            allowed=", ".join(known) or "none: it has no kernels.json",
        )
    path = known[name].source
    if path not in contents.files:
        raise UsageError(f"holds no {quote(path)}", where=contents.source)
    return contents.files[path].decode("utf-8", "replace")


def _kernel(entry: Mapping[str, JsonValue]) -> KernelFacts:
    ops = entry.get("ops")
    texts = {key: str(entry.get(key, "")) for key in ("name", "family", "variant", "source")}
    return KernelFacts(**texts, ops=tuple(map(str, ops)) if isinstance(ops, list) else ())


def _library(contents: Contents, path: str) -> LibraryFacts:
    if path not in contents.files:
        raise UsageError(f"holds no {quote(path)}", where=contents.source)
    data = contents.files[path]
    library = parse_library(data, source=f"{contents.source}: {path}")
    versions = [v for _, v in library.versions if v.startswith("GLIBC_2.")]
    newest = max(versions, key=lambda v: [int(x) for x in v[6:].split(".")], default="")
    exports = tuple(name.removeprefix("__tvm_ffi_") for name in library.exported)
    return LibraryFacts(path, len(data), library.needed, newest, exports)
