"""Owns row files: reading what is good of a file with every problem told, and writing it whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelgen.core.decode import from_json
from kernelgen.core.errors import KernelgenError, UsageError, quote
from kernelgen.core.files import read_bounded, write_atomic
from kernelgen.core.jsonio import loads, to_json
from kernelgen.tables.key import TuningKey
from kernelgen.tables.row import SCHEMA, Row

MAX_FILE_BYTES = 32 << 20


@dataclass(frozen=True)
class Reading:
    """What a file holds: rows that may be used, and one line of text for each thing that may
    not."""

    rows: tuple[Row, ...]
    problems: tuple[str, ...] = ()
    lines: Mapping[TuningKey, int] = field(default_factory=dict)
    """of the rows, counted from 1"""


def table_path(folder: Path, sm: str, device: str, family: str) -> Path:
    """Where the rows of one family on one device lie below a folder of tables."""
    return folder / sm / device / f"{family}.jsonl"


def rows_to_text(rows: Iterable[Row]) -> str:
    """One line a row, sorted by variant, phase and size: equal rows give equal text, and a sweep
    that adds rows adds lines, so that git merges two of them."""
    ordered = sorted(rows, key=lambda row: row.order)
    return "".join(json.dumps(to_json(row), allow_nan=False) + "\n" for row in ordered)


def write_rows(path: Path, rows: Iterable[Row]) -> Path:
    """Replaces a table by one rename; `UsageError` in one line for a folder that is read-only."""
    return write_atomic(path, rows_to_text(rows))


def read_rows(path: Path) -> Reading:
    """Rows of `…/<sm>/<device>/<family>.jsonl`; never raises for what a file holds.

    A line that is no row, a row of another SM, device or family than its path, and rows that share
    a key without saying the same are left out and told. Nobody guesses which of two was meant.
    """
    try:
        lines = read_bounded(path, MAX_FILE_BYTES).splitlines()
    except KernelgenError as error:
        return Reading((), (str(error),))
    expected = (path.parent.parent.name, path.parent.name, path.stem)
    found: dict[TuningKey, tuple[int, Row]] = {}
    problems, bad = [], set[TuningKey]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        row = _row(line, where)
        if isinstance(row, str):
            problems.append(row)
        elif (row.sm, row.device, row.family) != expected:
            told = f"a row of {row.sm}/{row.device}/{row.family} (allowed: {'/'.join(expected)})"
            problems.append(f"{where}: {told}")
        elif row.key not in found:
            found[row.key] = (number, row)
        elif row == found[row.key][1]:
            problems.append(f"{where}: repeats line {found[row.key][0]}")
        else:
            bad.add(row.key)
            problems.append(
                f"{where}: contradicts line {found[row.key][0]} ({row.bucket} of the same variant):"
                " neither is used"
            )
    good = {key: (number, row) for key, (number, row) in found.items() if key not in bad}
    lines_of = {key: number for key, (number, _) in good.items()}
    return Reading(tuple(row for _, row in good.values()), tuple(problems), lines_of)


def _row(line: bytes, where: str) -> Row | str:
    """A line as a row, or what is wrong with it in one line of text."""
    try:
        data = loads(line, source=where)
        schema = data.get("schema") if isinstance(data, dict) else None
        if type(schema) is int and schema > SCHEMA:
            return f"{where}: schema {schema} is newer than this kernelgen ({SCHEMA}): upgrade it"
        if isinstance(data, dict) and schema != SCHEMA:
            found = quote(schema) if "schema" in data else "no schema"
            return f"{where}: schema {found} is not ours (allowed: {SCHEMA})"
        return from_json(Row, data, source=where)
    except UsageError as error:
        return " ".join(str(error).split())


@dataclass(frozen=True)
class Merged:
    """Rows of two tables, one for each key, and what both had measured at one time."""

    rows: tuple[Row, ...]
    conflicts: tuple[str, ...] = ()


def merge(old: Iterable[Row], new: Iterable[Row]) -> Merged:
    """Rows of both, sorted; of two with one key the newer, whichever side it is on.

    Different rows of one date are a conflict: the slower time is kept, since no table may promise
    more than was seen twice, and the conflict is told. The result does not depend on the order.
    """
    found: dict[Any, Row] = {}
    conflicts: list[str] = []
    for row in (*old, *new):
        have = found.get(row.key)
        if have is None or have == row:
            found[row.key] = row
            continue
        if have.date == row.date:
            conflicts.append(
                f"{row.sm}:{row.device} {row.family} {row.bucket}: two rows of {row.date},"
                f" {min(have.us, row.us):g} and {max(have.us, row.us):g} µs: the slower is kept"
            )
        found[row.key] = max(have, row, key=_rank)
    return Merged(_sorted(tuple(found.values())), tuple(sorted(conflicts)))


def _rank(row: Row) -> tuple[str, float, str]:
    return (row.date, row.us, json.dumps(to_json(row), sort_keys=True))


def _sorted(rows: Sequence[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: row.order))
