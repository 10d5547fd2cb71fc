"""Owns reading an ELF shared library: what it needs, which versions, what it leaves undefined."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelgen.core.errors import UsageError
from kernelgen.core.files import read_bounded

MAX_BYTES = 1 << 30
MACHINE_X86_64 = 62

_SECTION_DYNAMIC, _SECTION_DYNSYM = 6, 11
_SECTION_VERNEED, _SECTION_VERSYM = 0x6FFFFFFE, 0x6FFFFFFF
_NEEDED, _SONAME, _RPATH, _RUNPATH = 1, 14, 15, 29


@dataclass(frozen=True)
class SharedLibrary:
    """Facts of one library. `versions` are pairs (library, version symbol) such as
    ("libc.so.6", "GLIBC_2.34"); `undefined` are symbols that no named version binds."""

    machine: int
    needed: tuple[str, ...]
    soname: str
    search_paths: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    exported: tuple[str, ...]
    undefined: tuple[str, ...]


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    info: int


def read_library(path: Path) -> SharedLibrary:
    """Facts of the library at `path`; `UsageError` when it is not a 64-bit little-endian one."""
    return parse_library(read_bounded(path, MAX_BYTES), source=str(path))


def parse_library(data: bytes, *, source: str) -> SharedLibrary:
    """As `read_library`, on bytes already read; `source` names them in errors."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise UsageError("is not a 64-bit little-endian ELF library", where=source)
    try:
        return _parse(data)
    except (struct.error, IndexError, ValueError, OverflowError):
        raise UsageError("is a damaged ELF library", where=source) from None


def _parse(data: bytes) -> SharedLibrary:
    (machine,) = struct.unpack_from("<H", data, 18)
    (table,) = struct.unpack_from("<Q", data, 40)
    entry_bytes, count = struct.unpack_from("<HH", data, 58)
    sections = []
    for i in range(count):
        _, kind, _, _, offset, size, link, info = struct.unpack_from(
            "<IIQQQQII", data, table + i * entry_bytes
        )
        sections.append(_Section(kind, offset, size, link, info))
    tags = list(_dynamic(data, sections))
    versions = list(_versions(data, sections))
    exported, undefined = _symbols(data, sections)
    return SharedLibrary(
        machine=machine,
        needed=tuple(text for tag, text in tags if tag == _NEEDED),
        soname=next((text for tag, text in tags if tag == _SONAME), ""),
        search_paths=tuple(text for tag, text in tags if tag in (_RPATH, _RUNPATH)),
        versions=tuple(sorted(set(versions))),
        exported=tuple(sorted(exported)),
        undefined=tuple(sorted(undefined)),
    )


def _text(data: bytes, strings: _Section, offset: int) -> str:
    start = strings.offset + offset
    end = data.index(b"\0", start)
    return data[start:end].decode("ascii", "replace")


def _dynamic(data: bytes, sections: list[_Section]) -> Iterator[tuple[int, str]]:
    for section in sections:
        if section.kind != _SECTION_DYNAMIC:
            continue
        strings = sections[section.link]
        for at in range(section.offset, section.offset + section.size, 16):
            tag, value = struct.unpack_from("<QQ", data, at)
            if tag in (_NEEDED, _SONAME, _RPATH, _RUNPATH):
                yield tag, _text(data, strings, value)


def _versions(data: bytes, sections: list[_Section]) -> Iterator[tuple[str, str]]:
    for section in sections:
        if section.kind != _SECTION_VERNEED:
            continue
        strings, at = sections[section.link], section.offset
        for _ in range(section.info):
            _, count, file, first, following = struct.unpack_from("<HHIII", data, at)
            inner = at + first
            for _ in range(count):
                _, _, _, name, step = struct.unpack_from("<IHHII", data, inner)
                yield _text(data, strings, file), _text(data, strings, name)
                inner += step
            at += following


def _symbols(data: bytes, sections: list[_Section]) -> tuple[set[str], set[str]]:
    exported: set[str] = set()
    undefined: set[str] = set()
    versym = next((s for s in sections if s.kind == _SECTION_VERSYM), None)
    for section in sections:
        if section.kind != _SECTION_DYNSYM:
            continue
        strings = sections[section.link]
        for i in range(1, section.size // 24):
            name, info, _, index = struct.unpack_from("<IBBH", data, section.offset + 24 * i)
            if index:
                exported.add(_text(data, strings, name))
                continue
            bound = 0
            if versym is not None:
                (bound,) = struct.unpack_from("<H", data, versym.offset + 2 * i)
            weak = info >> 4 == 2  # the C runtime's optional hooks, e.g. __gmon_start__
            if bound & 0x7FFF < 2 and not weak:
                undefined.add(_text(data, strings, name))
    return exported, undefined
