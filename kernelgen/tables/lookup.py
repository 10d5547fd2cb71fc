"""Owns the look-up: what the tables say about a key, and how far that can be trusted."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelgen.tables.file import read_rows, table_path
from kernelgen.tables.fit import DeviceFit
from kernelgen.tables.fit_file import fit_path, read_fit
from kernelgen.tables.inherits import Inheritance, read_inheritance
from kernelgen.tables.key import TuningKey
from kernelgen.tables.row import Row
from kernelgen.tables.verdict import LookUp, Verdict

NEAR = 2.0
"""how far a measured size may lie from the one asked for, as a ratio, to be interpolated from"""

Fits = Callable[[Row], str]
"""Why a row cannot serve the size that was asked for: `STALE`, or words; empty when it can."""
STALE = "stale"
"""what `Fits` says of a row whose kernel has other code today"""


def any_row(row: Row) -> str:
    """The `Fits` of somebody who asks for rows and not for kernels."""
    return ""


@dataclass(frozen=True)
class _Family:
    """Rows of one family on one device, by variant and phase, smallest size first."""

    sizes: Mapping[tuple[str, str], tuple[tuple[int, ...], tuple[Row, ...]]]


@dataclass
class Tables:
    """The rows below one folder; a family's file is read when it is first asked for.

    What cannot be used is left out and told in `problems`, one line each: the rest serves.
    """

    folder: Path
    problems: list[str] = field(default_factory=list)
    _families: dict[tuple[str, str, str], _Family] = field(default_factory=dict)
    _inherits: dict[tuple[str, str], Inheritance | None] = field(default_factory=dict)
    _fits: dict[tuple[str, str], DeviceFit | None] = field(default_factory=dict)

    def look_up(
        self, key: TuningKey, fits: Fits = any_row, *, require_tuned: bool = False
    ) -> LookUp:
        """The answer to `key`, never the nearest row in silence.

        `fits` judges rows as far as they depend on the kernel: its code and what its tile may be.
        """
        found = self._measured(key, fits)
        if found.row is None or found.verdict is Verdict.STALE:
            found = self._inherited(key, fits) or found
        if require_tuned and found.verdict in (Verdict.MODELLED, Verdict.STALE):
            return replace(found, verdict=Verdict.REFUSED)
        return found

    def note(self, problem: str) -> None:
        """Tell a problem once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def rows(self, sm: str, device: str, family: str) -> tuple[Row, ...]:
        """All usable rows of one family on one device, sorted."""
        found = self._family(sm, device, family).sizes.values()
        return tuple(sorted((row for _, rows in found for row in rows), key=lambda r: r.order))

    def of_variant(self, sm: str, device: str, family: str, variant: str) -> tuple[Row, ...]:
        """Rows of one variant at all sizes."""
        sizes = self._family(sm, device, family).sizes
        found = [sizes.get((variant, phase), ((), ()))[1] for phase in ("decode", "mixed")]
        return tuple(row for rows in found for row in rows)

    def _measured(self, key: TuningKey, fits: Fits) -> LookUp:
        """From rows of the key's own device."""
        size = key.bucket.size
        place = (key.variant, key.bucket.phase)
        sizes, rows = self._family(key.sm, key.device, key.family).sizes.get(place, ((), ()))
        at = bisect_left(sizes, size)
        stale: Row | None = None
        above = rows[at:]
        if sizes[at : at + 1] == (size,):
            row, above = rows[at], rows[at + 1 :]
            why = fits(row)
            if not why:
                return LookUp(
                    Verdict.EXACT, _told(row), row.us, row.choice, row=row, device=key.device
                )
            stale = row if why == STALE else None
            if not stale:
                self.note(_illegal(row, key, why))
        between = self._between(key, rows[:at], above, fits)
        if between is not None:
            return between
        if stale is not None:
            reason = f"the code has changed since it was measured ({stale.date})"
            return LookUp(Verdict.STALE, reason, row=stale, device=key.device)
        return LookUp(
            Verdict.MODELLED, f"no row for {key.family} at {key.bucket} on {key.sm}:{key.device}"
        )

    def _between(
        self, key: TuningKey, below: tuple[Row, ...], above: tuple[Row, ...], fits: Fits
    ) -> LookUp | None:
        """Between the next measured sizes on both sides, if both are near; time goes as a power of
        the size between them. The tile is the nearer one's, or the other's where that is illegal.
        """
        size = key.bucket.size
        low = next((r for r in reversed(below) if fits(r) != STALE), None)
        high = next((r for r in above if fits(r) != STALE), None)
        if low is None or high is None:
            return None
        a, b = low.key.bucket.size, high.key.bucket.size
        if size / a > NEAR or b / size > NEAR:
            return None
        share = math.log(size / a) / math.log(b / a)
        us = math.exp((1 - share) * math.log(low.us) + share * math.log(high.us))
        nearer = (low, high) if share < 0.5 else (high, low)
        row = next((r for r in nearer if not fits(r)), None)
        if row is None:
            return None
        reason = f"between {low.us:g} µs at {low.bucket} and {high.us:g} µs at {high.bucket}"
        return LookUp(Verdict.INTERPOLATED, reason, us, row.choice, row=row, device=key.device)

    def _inherited(self, key: TuningKey, fits: Fits) -> LookUp | None:
        """From the sibling that a file beside the table names; its own siblings do not count."""
        declared = self.inheritance(key.sm, key.device)
        if declared is None:
            return None
        found = self._measured(replace(key, device=declared.source), fits)
        if found.verdict not in (Verdict.EXACT, Verdict.INTERPOLATED):
            return None
        reason = f"{found.reason} on {key.sm}:{declared.source} ({declared.why})"
        return replace(found, verdict=Verdict.INHERITED, reason=reason)

    def inheritance(self, sm: str, device: str) -> Inheritance | None:
        """What a device takes over from a sibling of its SM, if a file declares it."""
        place = (sm, device)
        if place not in self._inherits:
            self._inherits[place], problems = read_inheritance(self.folder, sm, device)
            for problem in problems:
                self.note(problem)
        return self._inherits[place]

    def fit(self, sm: str, device: str) -> DeviceFit | None:
        """The fit of the cost model on a device, or on the sibling that it inherits from."""
        place = (sm, device)
        if place not in self._fits:
            found, problems = read_fit(fit_path(self.folder, sm, device))
            for problem in problems:
                self.note(problem)
            declared = self.inheritance(sm, device)
            if found is None and declared is not None:
                found, _ = read_fit(fit_path(self.folder, sm, declared.source))
            self._fits[place] = found
        return self._fits[place]

    def _family(self, sm: str, device: str, family: str) -> _Family:
        place = (sm, device, family)
        if place not in self._families:
            self._families[place] = self._read(table_path(self.folder, *place))
        return self._families[place]

    def _read(self, path: Path) -> _Family:
        if not path.is_file():
            return _Family({})
        reading = read_rows(path)
        for problem in reading.problems:
            self.note(problem)
        found: dict[tuple[str, str], list[Row]] = {}
        for row in sorted(reading.rows, key=lambda r: r.order):
            found.setdefault((row.variant, row.key.bucket.phase), []).append(row)
        return _Family(
            {
                place: (tuple(r.key.bucket.size for r in rows), tuple(rows))
                for place, rows in found.items()
            }
        )


def _told(row: Row) -> str:
    """A measurement in words."""
    clocks = f", {row.clocks.sm_min} to {row.clocks.sm_max} MHz" if row.clocks else ""
    return f"measured {row.us:g} µs, {row.samples} samples of {row.date}{clocks}"


def _illegal(row: Row, key: TuningKey, why: str) -> str:
    tile = ", ".join(f"{name} {value}" for name, value in row.choice.items())
    return (
        f"{key.sm}/{key.device}/{key.family}.jsonl: a row at {row.bucket} is not used: its tile"
        f" ({tile}) is illegal: {why}"
    )
