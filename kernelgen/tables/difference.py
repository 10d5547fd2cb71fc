"""Owns the comparison of two sets of rows: what came, what went, what another sweep says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernelgen.core.errors import UsageError
from kernelgen.tables.file import Reading, read_rows
from kernelgen.tables.row import Row


@dataclass(frozen=True)
class Difference:
    """Rows by what happened to their key."""

    added: tuple[Row, ...]
    removed: tuple[Row, ...]
    changed: tuple[tuple[Row, Row], ...]
    """before and after"""
    same: int


def read_place(path: Path) -> Reading:
    """Rows of one file, or of all files below a folder."""
    if path.is_file():
        return read_rows(path)
    if not path.is_dir():
        raise UsageError("no such file or folder", where=str(path))
    readings = [read_rows(file) for file in sorted(path.rglob("*.jsonl"))]
    return Reading(
        tuple(row for reading in readings for row in reading.rows),
        tuple(problem for reading in readings for problem in reading.problems),
    )


def difference(before: Iterable[Row], after: Iterable[Row]) -> Difference:
    """Rows are the same where their choice, time, code and date are."""
    old = {row.key: row for row in before}
    new = {row.key: row for row in after}
    both = [(old[key], new[key]) for key in old.keys() & new.keys()]
    changed = [(a, b) for a, b in both if a != b]
    return Difference(
        added=_sorted(new[key] for key in new.keys() - old.keys()),
        removed=_sorted(old[key] for key in old.keys() - new.keys()),
        changed=tuple(sorted(changed, key=lambda pair: pair[0].order)),
        same=len(both) - len(changed),
    )


def _sorted(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: row.order))
