"""Owns tuning tables for people: rows, their difference, the fit, and the coverage of plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from kernelgen.report.figures import percent_text, us_text
from kernelgen.report.tables import table
from kernelgen.tables import Row, Verdict
from kernelgen.tables.difference import Difference
from kernelgen.tables.fit import Correction, DeviceFit
from kernelgen.tables.left_out import LeftOut

_MEASURED = ("time", "spread", "ceiling", "error")
_ROW_HEAD = ("family", "bucket", *_MEASURED, "MHz", "date", "tile", "variant")
_FIT_HEAD = ("family", "rows", "model: median", "p90", "fitted: median", "p90", "scales", "added")
_LEFT_OUT_HEAD = ("family", "rows", "mean", "worst", "at")
_VARIANT = 60


def rows_table(title: str, rows: Sequence[Row]) -> Table:
    """One line a row; what was not recorded is a dash."""
    return table(title, _ROW_HEAD, [_row(row) for row in rows], right=_MEASURED)


def _row(row: Row) -> tuple[str, ...]:
    spread = "–"
    if row.us_p10 is not None and row.us_p90 is not None:
        spread = percent_text((row.us_p90 - row.us_p10) / row.us)
    clocks = f"{row.clocks.sm_min}–{row.clocks.sm_max}" if row.clocks else "–"
    return (
        row.family,
        row.bucket,
        us_text(row.us),
        spread,
        _share(row.share_of_ceiling),
        _share(row.error_share),
        clocks,
        row.date[:10],
        tile_text(row),
        _cut(row.variant),
    )


def _cut(text: str) -> str:
    return text if len(text) <= _VARIANT else f"{text[: _VARIANT - 1]}…"


def _share(value: float | None) -> str:
    return "–" if value is None else percent_text(value)


def tile_text(row: Row) -> str:
    """`rows 16, outputs 64`"""
    return ", ".join(f"{name} {value}" for name, value in row.choice.items())


def fit_table(title: str, fit: DeviceFit) -> Table:
    """Scatter of predicted against measured times, before and after the fit, by family."""
    rows = [_fit_row(name, one) for name, one in sorted(fit.families.items())]
    rows.append(_fit_row("all", fit.whole))
    return table(title, _FIT_HEAD, rows, right=_FIT_HEAD[1:6])


def _fit_row(name: str, one: Correction) -> tuple[str, ...]:
    scales = ", ".join(f"{part} × {scale:.2f}" for part, scale in one.scales.items())
    errors = (one.before.median, one.before.p90, one.after.median, one.after.p90)
    return (name, str(one.rows), *map(percent_text, errors), scales, f"{one.add_us:+.2f} µs")


def left_out_table(title: str, found: Mapping[str, LeftOut]) -> Table:
    """Errors of interpolated against measured times, by family, and where they are largest."""
    rows = [
        (name, str(one.rows), percent_text(one.mean), percent_text(one.worst), _cut(one.where))
        for name, one in found.items()
    ]
    return table(title, _LEFT_OUT_HEAD, rows, right=_LEFT_OUT_HEAD[1:4])


def difference_lines(found: Difference) -> Iterator[str]:
    """One line a key that differs, then the counts."""
    for row in found.removed:
        yield f"- {row_name(row)}: {row.us:g} µs"
    for row in found.added:
        yield f"+ {row_name(row)}: {row.us:g} µs, {tile_text(row)}"
    for a, b in found.changed:
        tile = "same tile" if a.choice == b.choice else f"{tile_text(a)} → {tile_text(b)}"
        code = "" if a.source == b.source else "; other code"
        yield f"~ {row_name(a)}: {a.us:g} → {b.us:g} µs ({b.us / a.us - 1:+.1%}), {tile}{code}"
    yield (
        f"{len(found.added)} added, {len(found.removed)} removed, {len(found.changed)} changed,"
        f" {found.same} the same"
    )


def row_name(row: Row) -> str:
    """Device, family, bucket, and as much of the variant as fits a line."""
    return f"{row.sm}:{row.device} {row.family} {row.bucket} {_cut(row.variant)}"


def coverage_lines(coverage: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """One line a phase of what `phase_coverage` found, best verdicts first."""
    for phase, verdicts in coverage.items():
        order = [v.value for v in Verdict if v.value in verdicts]
        told = [
            f"{v} {verdicts[v]['kernels']} ({percent_text(verdicts[v]['share'])})" for v in order
        ]
        yield f"{phase}: times by launches (share of time): {', '.join(told)}"


def phase_coverage(plans: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Coverage of many plans ("decode 8" → verdict → kernels and share) by phase: kernels are
    added up; of the shares of time every plan counts the same.
    """
    found: dict[str, dict[str, Any]] = {}
    counts: dict[str, int] = {}
    for name, verdicts in plans.items():
        phase = name.split()[0]
        counts[phase] = counts.get(phase, 0) + 1
        for verdict, part in verdicts.items():
            entry = found.setdefault(phase, {}).setdefault(verdict, {"kernels": 0, "share": 0.0})
            entry["kernels"] += part["kernels"]
            entry["share"] += part["share"]
    for phase, entries in found.items():
        for entry in entries.values():
            entry["share"] = round(entry["share"] / counts[phase], 4)
    return found
