"""Owns the difference of two builds: fields, files and the lines of generated text that changed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from kernelgen.core.jsonio import JsonValue, dumps
from kernelgen.pack.contents import Contents, own_files

MAX_LINES = 200
_SHOWN = 120


@dataclass(frozen=True)
class FieldChange:
    """One value of the manifest; an absent side is the empty string, others are JSON."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class FileChange:
    """One file in both builds with other content; `lines` a bounded unified diff of text."""

    path: str
    bytes_before: int
    bytes_after: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class BuildDiff:
    """All differences between two builds; `same` when there are none."""

    fields: tuple[FieldChange, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[FileChange, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.fields or self.added or self.removed or self.changed)


def diff_builds(before: Contents, after: Contents) -> BuildDiff:
    """What changed from one build to the other; the vendored runtime counts as files, unread."""
    old, new = before.files, after.files
    readable = own_files(before).keys() & own_files(after).keys()
    changed = [
        FileChange(
            path, len(old[path]), len(new[path]), _lines(before, after, path, path in readable)
        )
        for path in sorted(old.keys() & new.keys())
        if old[path] != new[path]
    ]
    return BuildDiff(
        fields=tuple(_fields(before.manifest, after.manifest, "")),
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        changed=tuple(changed),
    )


def _fields(before: JsonValue, after: JsonValue, path: str) -> Iterator[FieldChange]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            inner = f"{path}.{key}" if path else key
            if key not in before:
                yield FieldChange(inner, "", _shown(after[key]))
            elif key not in after:
                yield FieldChange(inner, _shown(before[key]), "")
            else:
                yield from _fields(before[key], after[key], inner)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _fields(one, other, f"{path}[{i}]")
    elif before != after or type(before) is not type(after):
        yield FieldChange(path, _shown(before), _shown(after))


def _shown(value: JsonValue) -> str:
    text = dumps(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _lines(before: Contents, after: Contents, path: str, readable: bool) -> tuple[str, ...]:
    if not readable or path.endswith(".so"):
        return ()
    try:
        one = before.files[path].decode().splitlines()
        other = after.files[path].decode().splitlines()
    except UnicodeDecodeError:
        return ()
    lines = list(difflib.unified_diff(one, other, "before", "after", lineterm="", n=1))
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"… and {len(lines) - MAX_LINES} more lines"]
    return tuple(lines)
