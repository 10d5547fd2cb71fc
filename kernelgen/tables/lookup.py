"""Owns the look-up: what the tables say about a key, and how far that can be trusted."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kernelgen.tables.key import TuningKey
from kernelgen.tables.row import Row, read_rows


class Verdict(StrEnum):
    """How an answer came about, best first."""

    EXACT = "exact"
    """measured: this variant, this size, this device"""
    INTERPOLATED = "interpolated"
    """between two sizes measured on this device"""
    INHERITED = "inherited"
    """from another device, where a table declares that this is allowed"""
    MODELLED = "modelled"
    """computed by the cost model"""
    REFUSED = "refused"
    """no measurement, and one was required"""


@dataclass(frozen=True)
class LookUp:
    """The answer to one key; `row` is None unless something measured answered it."""

    verdict: Verdict
    row: Row | None
    reason: str


@dataclass
class Tables:
    """The rows below one folder; a family's file is read when it is first asked for."""

    folder: Path
    _rows: dict[tuple[str, str, str], dict[TuningKey, Row]] = field(default_factory=dict)

    def look_up(self, key: TuningKey, *, require_tuned: bool = False) -> LookUp:
        """The row for `key`, or why there is none; never the nearest one in silence.

        `UsageError` when the table's file is damaged.
        """
        row = self._family(key).get(key)
        if row is not None:
            return LookUp(Verdict.EXACT, row, f"measured, {row.samples} samples")
        reason = f"no row for {key.family} at {key.bucket} on {key.sm}:{key.device}"
        return LookUp(Verdict.REFUSED if require_tuned else Verdict.MODELLED, None, reason)

    def _family(self, key: TuningKey) -> dict[TuningKey, Row]:
        place = (key.sm, key.device, key.family)
        if place not in self._rows:
            path = self.folder / key.sm / key.device / f"{key.family}.jsonl"
            self._rows[place] = {row.key: row for row in read_rows(path)} if path.is_file() else {}
        return self._rows[place]
