"""Owns the report of a sweep on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from kernelgen.report.figures import percent_text
from kernelgen.report.sweep_data import FamilySweep, PrunedTiles, SweepView
from kernelgen.report.sweep_steps import StepChoice
from kernelgen.report.tables import table

_HEAD = (
    "family", "size", "kernels", "tiles", "measured", "bad", "disturbed", "ceiling before",
    "after", "faster", "model's choice",
)  # fmt: skip
_PRUNED_HEAD = ("family", "tiles", "not measured because", "for example")
STEPS_HEAD = ("kernel", "size", "tried", "whole step", "tile")
_FAULTS = 20


def sweep_parts(view: SweepView) -> Iterator[Table | str]:
    """Families at each size, what was pruned and why, and what was bad."""
    rows = [_family(one) for one in view.families]
    yield table(f"{view.title}, {view.date[:10]}", _HEAD, rows, right=_HEAD[2:])
    if view.modelled is not None:
        yield f"the cost model's own choices take {view.modelled - 1:.1%} longer than the fastest"
    if view.in_steps:
        title = "chosen inside whole steps"
        yield table(title, STEPS_HEAD, step_rows(view.in_steps), right=STEPS_HEAD[2:4])
    yield table("", _PRUNED_HEAD, [_pruned(one) for one in view.pruned], right=("tiles",))
    lines = [f"bad: {f.kernel} {f.bucket} {f.candidate}: {f.problem}" for f in view.faults]
    if len(lines) > _FAULTS:
        lines = [*lines[:_FAULTS], f"and {len(lines) - _FAULTS} more bad candidates"]
    lines += [f"not shipped: {k.kernel} {k.bucket}: {k.flag}" for k in view.kernels if k.flag]
    if lines:
        yield escape("\n".join(lines))


def _family(one: FamilySweep) -> Sequence[str]:
    return (
        one.family,
        one.bucket,
        str(one.kernels),
        str(one.looked_at),
        str(one.candidates),
        str(one.bad),
        str(one.flagged),
        _share(one.before),
        _share(one.after),
        "–" if one.gain is None else f"{one.gain:.2f} ×",
        "–" if one.modelled is None else f"{one.modelled - 1:+.0%}",
    )


def step_rows(choices: Sequence[StepChoice]) -> list[tuple[str, ...]]:
    """Kernel, size, tiles tried, what the whole step gained, tile; new tiles first."""
    ordered = sorted(choices, key=lambda one: (not one.is_new, -one.gain))
    return [
        (
            one.kernel,
            one.bucket,
            str(one.tried),
            f"{-one.gain:+.1%}" if one.is_new else "the same",
            one.flag or (f"{one.before} → {one.kept}" if one.is_new else one.kept),
        )
        for one in ordered
    ]


def _share(value: float | None) -> str:
    return "–" if value is None else percent_text(value)


def _pruned(one: PrunedTiles) -> Sequence[str]:
    return (one.family, str(one.tiles), one.reason, one.example)
