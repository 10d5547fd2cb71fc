"""Owns `kernelgen tables check`, `show`, `diff` and `fit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelgen.cli import console
from kernelgen.cli.console import MOST_LINES
from kernelgen.cli.options import Json, TablesFolder

if TYPE_CHECKING:
    from kernelgen.tables import Tables
    from kernelgen.tables.left_out import LeftOut

app = typer.Typer(help="Measured rows of tuned tiles.", no_args_is_help=True, rich_markup_mode=None)

OneTarget = Annotated[
    str | None, typer.Option("--target", "-t", help="sm_90 or sm_90:h200. [all that have rows]")
]


def check(
    tables: TablesFolder = None,
    code: Annotated[
        bool, typer.Option("--code", help="Also look for rows whose kernels have changed.")
    ] = False,
    json: Json = False,
) -> None:
    """Read every row, fit and declaration; exit with 1 if any of them could not be used.

    Rows that are stale are a warning: plans model their kernels until they are measured again.
    """
    from kernelgen.cli.table_models import Judged, judged
    from kernelgen.cli.tuned import open_tables
    from kernelgen.core.errors import CheckFailed, ProblemList, UsageError
    from kernelgen.tables.checking import LAYOUT, check_folder

    opened = open_tables(tables)
    found = check_folder(opened.folder)
    if not found.files:
        raise UsageError("holds no tables", where=str(opened.folder), allowed=LAYOUT)
    by_code = judged(opened) if code else Judged((), ())
    problems = [*found.problems, *by_code.illegal]
    if json:
        console.result_json(
            {
                "files": found.files,
                "rows": len(found.rows),
                "problems": problems,
                "stale": by_code.stale,
            }
        )
    else:
        stale = f", {len(by_code.stale)} of them stale" if code else ""
        console.result(
            f"{opened.folder}: {found.files} files, {len(found.rows)} usable rows{stale}"
        )
    console.say_some(by_code.stale, "warning: ")
    listed = ProblemList("tables", CheckFailed, limit=MOST_LINES)
    for problem in problems:
        listed.add(problem)
    listed.raise_if_any()


def show(
    target: OneTarget = None,
    family: Annotated[str | None, typer.Option(help="Only rows of this family.")] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only variants that contain this.")
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="The fitted cost model and its errors instead of rows.")
    ] = False,
    tables: TablesFolder = None,
    json: Json = False,
) -> None:
    """Print rows, or how well the cost model and interpolation agree with them."""
    from kernelgen.cli.table_models import devices_with_rows
    from kernelgen.cli.tuned import open_tables, warn
    from kernelgen.core.errors import UsageError, quote
    from kernelgen.report.tuning_text import rows_table
    from kernelgen.tables.difference import read_place
    from kernelgen.tables.left_out import left_out

    opened = open_tables(tables)
    if fit and (family or variant):
        raise UsageError("--family and --variant are for rows", hint="leave out --fit")
    have: dict[str, None] = {}
    shown = 0
    for sm, device in devices_with_rows(opened, target):
        reading = read_place(opened.folder / sm / device)
        for problem in reading.problems:
            opened.note(problem)
        if fit:
            _show_fit(opened, sm, device, left_out(reading.rows), json)
            continue
        have |= dict.fromkeys(r.family for r in reading.rows)
        rows = [r for r in reading.rows if family in (None, r.family)]
        rows = [r for r in rows if variant is None or variant in r.variant]
        shown += len(rows)
        if json and rows:
            console.result_json(rows)
        elif rows:
            console.render(rows_table(f"{sm}:{device}: {len(rows)} rows", rows))
    warn(opened)
    if family is not None and family not in have and not fit:
        raise UsageError(f"no rows of {quote(family)}", where="--family", allowed=", ".join(have))
    if not shown and not fit:
        raise UsageError(f"no row's variant contains {quote(variant)}", where="--variant")


def _show_fit(
    tables: Tables, sm: str, device: str, without: Mapping[str, LeftOut], json: bool
) -> None:
    """What of the cost model agrees with the rows, and what of the rows with one another."""
    from kernelgen.report.tuning_text import fit_table, left_out_table

    made = tables.fit(sm, device)
    if made is None:
        console.say(f"{sm}:{device} has no fit; `kernelgen tables fit` makes it")
    if json:
        fitted = {} if made is None else {f.name: getattr(made, f.name) for f in fields(made)}
        console.result_json({**fitted, "left_out": without})
        return
    if made is not None:
        console.render(fit_table(f"{sm}:{device}: predicted against measured", made))
    console.render(left_out_table(f"{sm}:{device}: rows left out and interpolated", without))


def diff(
    before: Annotated[Path, typer.Argument(help="Folder of tables, or one file of rows.")],
    after: Annotated[Path, typer.Argument(help="What to compare it with.")],
    json: Json = False,
) -> None:
    """Compare two sets of rows key by key."""
    from kernelgen.report.tuning_text import difference_lines
    from kernelgen.tables.difference import difference, read_place

    a, b = read_place(before), read_place(after)
    console.say_some((*a.problems, *b.problems), "warning: ")
    found = difference(a.rows, b.rows)
    if json:
        console.result_json(found)
        return
    console.result("\n".join(difference_lines(found)))


def fit(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Whose kernels the rows are of. [built-in]"),
    ] = None,
    target: OneTarget = None,
    tables: TablesFolder = None,
    json: Json = False,
) -> None:
    """Fit the cost model to the rows of each device and keep it beside them (FIT.json)."""
    from kernelgen.cli.table_models import devices_with_rows, refit
    from kernelgen.cli.tuned import open_tables, warn
    from kernelgen.report.tuning_text import fit_table

    opened = open_tables(tables)
    for sm, device in devices_with_rows(opened, target):
        made, left = refit(opened, sm, device, models or ())
        if made is None:
            console.say(f"{sm}:{device}: none of {left} rows belongs to a kernel of these models")
            continue
        if json:
            console.result_json(made)
        else:
            console.render(fit_table(f"{sm}:{device}: predicted against measured", made))
        if left:
            console.say(f"{sm}:{device}: {left} rows are stale or of other models: not used")
    warn(opened)


app.command("check")(check)
app.command("show")(show)
app.command("diff")(diff)
app.command("fit")(fit)
