"""Owns the row: one measured choice of one kernel variant, and the reader of row files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernelgen.core.decode import from_json
from kernelgen.core.errors import ProblemList, UsageError
from kernelgen.core.files import read_bounded
from kernelgen.core.jsonio import loads
from kernelgen.tables.key import TuningKey, tuning_key

SCHEMA = 1
MAX_FILE_BYTES = 32 << 20


@dataclass(frozen=True)
class Row:
    """One line of a table; the spelling of each field is in `autotune_configs/SCHEMA.json`."""

    schema: Literal[1]
    sm: str
    device: str
    family: str
    variant: str
    bucket: str
    backend: str
    choice: Mapping[str, int]
    """tile parameters that were fastest"""
    us: float
    """median time of the kernel alone, memory cold"""
    bytes: int
    flops: int
    samples: int
    source: str
    """digest of the kernel's template: another one makes the row stale"""
    provenance: str
    """name of the sweep in PROVENANCE.md"""

    def __post_init__(self) -> None:
        if not self.us > 0:
            raise UsageError(f"us is {self.us}", allowed="above 0")
        if self.bytes < 0 or self.flops < 0 or self.samples < 1:
            raise UsageError("bytes, flops or samples", allowed="bytes ≥ 0, flops ≥ 0, samples ≥ 1")
        _ = self.key

    @property
    def key(self) -> TuningKey:
        """What this row answers."""
        return tuning_key(self.sm, self.device, self.family, self.variant, self.bucket)


def read_rows(path: Path) -> tuple[Row, ...]:
    """Rows of `…/<sm>/<device>/<family>.jsonl`, all problems of the file in one `UsageError`.

    A row that names another SM, device or family than its path is a problem, and so is a second
    row with the same key: rows are never merged across devices by accident.
    """
    expected = (path.parent.parent.name, path.parent.name, path.stem)
    problems = ProblemList(str(path), UsageError)
    rows: dict[TuningKey, Row] = {}
    for number, line in enumerate(read_bounded(path, MAX_FILE_BYTES).splitlines(), 1):
        if not line.strip():
            continue
        try:
            source = f"line {number}"
            row = from_json(Row, loads(line, source=source), source=source)
        except UsageError as error:
            problems.add(str(error))
            continue
        if (row.sm, row.device, row.family) != expected:
            found = f"is a row of {row.sm}/{row.device}/{row.family}"
            problems.add(found, where=f"line {number}", allowed="/".join(expected))
        elif row.key in rows:
            problems.add("repeats the key of an earlier row", where=f"line {number}")
        else:
            rows[row.key] = row
    problems.raise_if_any()
    return tuple(rows.values())
