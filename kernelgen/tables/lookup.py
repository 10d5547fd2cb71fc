"""Owns the look-up: what the tables say about a key, and how far that can be trusted."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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
MANY = 8
"""tiles of rows from which on one more is no step in the time"""


@dataclass(frozen=True)
class Doubt:
    """Why a row cannot serve the size that was asked for; falsy where it can."""

    stale: bool = False
    """its kernel has other code today"""
    illegal: str = ""
    """why its tile cannot be taken at the size that was asked for"""
    broken: str = ""
    """why it cannot even be taken where it is said to be measured: its time counts nowhere"""

    def __bool__(self) -> bool:
        return self.stale or bool(self.illegal or self.broken)


Judge = Callable[[Row], Doubt]
"""What a kernel thinks of a row."""
NO_DOUBT = Doubt()


def any_row(row: Row) -> Doubt:
    """The `Judge` of somebody who asks for rows and not for kernels."""
    return NO_DOUBT


def between_us(low: Row, high: Row, size: int) -> float:
    """Time at a size between two measured ones: what every request or token adds is the same from
    one to the other.
    """
    a, b = low.key.bucket.size, high.key.bucket.size
    return low.us + (high.us - low.us) * (size - a) / (b - a)


def of_one_kind(low: Row, high: Row) -> bool:
    """Whether two sizes have the same tile, and equally many where they are few: otherwise the time
    between them is a stair and not a line.
    """
    return low.choice == high.choice and _tiles(low) == _tiles(high)


def _tiles(row: Row) -> int:
    """Tiles that hold the rows of a size, at most `MANY`; as many where tiles have no rows."""
    rows = row.choice.get("rows", 0)
    return min(MANY, -(-row.key.bucket.size // rows)) if rows else MANY


def near(below: int, size: int, above: int) -> bool:
    """Whether two measured sizes are near enough to say something of one between them."""
    return size <= NEAR * below and above <= NEAR * size


@dataclass(frozen=True)
class _Family:
    """Rows of one family on one device, by variant and phase, smallest size first; and the lines of
    their file that they are on.
    """

    sizes: Mapping[tuple[str, str], tuple[tuple[int, ...], tuple[Row, ...]]]
    lines: Mapping[TuningKey, int] = field(default_factory=dict)


@dataclass
class Tables:
    """The rows below one folder; a family's file is read when it is first asked for.

    What cannot be used is left out and told in `problems`, one line each: the rest serves. Rows
    that were met and whose kernels have changed are kept in `stale`.
    """

    folder: Path
    problems: list[str] = field(default_factory=list)
    stale: dict[TuningKey, Row] = field(default_factory=dict)
    _families: dict[tuple[str, str, str], _Family] = field(default_factory=dict)
    _inherits: dict[tuple[str, str], Inheritance | None] = field(default_factory=dict)
    _fits: dict[tuple[str, str], DeviceFit | None] = field(default_factory=dict)

    def look_up(
        self, key: TuningKey, judge: Judge = any_row, *, require_tuned: bool = False
    ) -> LookUp:
        """The answer to `key`, never the nearest row in silence.

        `judge` knows rows as far as they depend on the kernel: its code and what its tile may be.
        """
        found = self._measured(key, judge)
        if found.row is None or found.verdict is Verdict.STALE:
            found = self._inherited(key, judge) or found
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

    def where(self, row: Row) -> str:
        """File and line of a row of these tables."""
        family = self._family(row.sm, row.device, row.family)
        path = table_path(self.folder, row.sm, row.device, row.family)
        return f"{path}: line {family.lines.get(row.key, 0)}"

    def warnings(self) -> Iterator[str]:
        """`problems`, then a line for each device that has stale rows."""
        yield from self.problems
        devices: dict[str, Counter[str]] = {}
        for row in self.stale.values():
            devices.setdefault(f"{row.sm}:{row.device}", Counter())[row.family] += 1
        for target, families in devices.items():
            told = ", ".join(f"{name} {count}" for name, count in sorted(families.items()))
            yield (
                f"rows of {target} are stale, their kernels' code has changed since they were"
                f" measured ({told}); `kernelgen tune MODEL --target {target}` measures again,"
                " `kernelgen tables check --code` lists them"
            )

    def _serves(self, row: Row, judge: Judge) -> bool:
        """Whether the time of a row counts; tells why where it does not."""
        doubt = judge(row)
        if doubt.broken:
            self.note(f"{self.where(row)}: {illegal_text(row, doubt)}")
        elif doubt.stale:
            self.stale[row.key] = row
        return not (doubt.broken or doubt.stale)

    def _measured(self, key: TuningKey, judge: Judge) -> LookUp:
        """From rows of the key's own device."""
        size = key.bucket.size
        place = (key.variant, key.bucket.phase)
        sizes, rows = self._family(key.sm, key.device, key.family).sizes.get(place, ((), ()))
        at = bisect_left(sizes, size)
        own = rows[at] if sizes[at : at + 1] == (size,) else None
        if own is not None and self._serves(own, judge):
            return LookUp(Verdict.EXACT, _told(own), own.us, own.choice, row=own, device=key.device)
        between = self._between(key, rows[:at], rows[at + (own is not None) :], judge)
        if between is not None:
            return between
        if own is not None and not judge(own).broken:
            reason = f"the code has changed since it was measured ({own.date})"
            return LookUp(Verdict.STALE, reason, row=own, device=key.device)
        return LookUp(
            Verdict.MODELLED, f"no row for {key.family} at {key.bucket} on {key.sm}:{key.device}"
        )

    def _between(
        self, key: TuningKey, below: tuple[Row, ...], above: tuple[Row, ...], judge: Judge
    ) -> LookUp | None:
        """Between the next measured sizes on both sides, if both are near. The tile is the nearer
        one's, or the other's where that is illegal. Interpolated only between equal tiles.
        """
        size = key.bucket.size
        low = next((r for r in reversed(below) if self._serves(r, judge)), None)
        high = next((r for r in above if self._serves(r, judge)), None)
        if low is None or high is None:
            return None
        a, b = low.key.bucket.size, high.key.bucket.size
        if not near(a, size, b):
            return None
        nearer = (low, high) if size * size < a * b else (high, low)
        row = next((r for r in nearer if not judge(r).illegal), None)
        if row is None:
            return None
        verdict, us = Verdict.INTERPOLATED, between_us(low, high, size)
        reason = f"between {low.us:g} µs at {low.bucket} and {high.us:g} µs at {high.bucket}"
        if not of_one_kind(low, high):
            verdict = Verdict.MODELLED
            reason += f", whose tiles differ: that of {row.bucket} is taken"
        return LookUp(verdict, reason, us, row.choice, row=row, device=key.device)

    def _inherited(self, key: TuningKey, judge: Judge) -> LookUp | None:
        """From the sibling that a file beside the table names; its own siblings do not count."""
        declared = self.inheritance(key.sm, key.device)
        if declared is None:
            return None
        found = self._measured(replace(key, device=declared.source), judge)
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
            },
            reading.lines,
        )


def _told(row: Row) -> str:
    """A measurement in words."""
    clocks = f", {row.clocks.sm_min} to {row.clocks.sm_max} MHz" if row.clocks else ""
    return f"measured {row.us:g} µs, {row.samples} samples of {row.date}{clocks}"


def illegal_text(row: Row, doubt: Doubt) -> str:
    """What is wrong with a row's tile, in words."""
    tile = ", ".join(f"{name} {value}" for name, value in row.choice.items())
    return f"a row at {row.bucket} is not used: its tile ({tile}) is illegal: {doubt.broken}"
