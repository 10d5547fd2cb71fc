"""Owns `kernelgen tables check`, `show`, `diff` and `fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli import console
from kernelgen.cli.options import Json, TablesFolder

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
    """Read every row, fit and declaration; exit with 1 if any of them could not be used."""
    from kernelgen.cli.table_models import stale_rows
    from kernelgen.cli.tuned import open_tables
    from kernelgen.core.errors import CheckFailed, ProblemList
    from kernelgen.tables.checking import check_folder

    opened = open_tables(tables)
    found = check_folder(opened.folder)
    problems = [*found.problems, *(stale_rows(opened) if code else ())]
    if json:
        console.result_json({"files": found.files, "rows": len(found.rows), "problems": problems})
    else:
        console.result(f"{opened.folder}: {found.files} files, {len(found.rows)} usable rows")
    listed = ProblemList("tables", CheckFailed)
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
    """Print rows, or how well the cost model agrees with them."""
    from kernelgen.cli.table_models import devices_with_rows
    from kernelgen.cli.tuned import open_tables, warn
    from kernelgen.report.tuning_text import fit_table, rows_table
    from kernelgen.tables.difference import read_place

    opened = open_tables(tables)
    for sm, device in devices_with_rows(opened, target):
        if fit:
            made = opened.fit(sm, device)
            if made is None:
                console.say(f"{sm}:{device} has no fit; `kernelgen tables fit` makes it")
            elif json:
                console.result_json(made)
            else:
                console.render(fit_table(f"{sm}:{device}: predicted against measured", made))
            continue
        reading = read_place(opened.folder / sm / device)
        for problem in reading.problems:
            opened.note(problem)
        rows = [r for r in reading.rows if family in (None, r.family)]
        rows = [r for r in rows if variant is None or variant in r.variant]
        if json:
            console.result_json(rows)
        else:
            console.render(rows_table(f"{sm}:{device}: {len(rows)} rows", rows))
    warn(opened)


def diff(
    before: Annotated[Path, typer.Argument(help="Folder of tables, or one file of rows.")],
    after: Annotated[Path, typer.Argument(help="What to compare it with.")],
    json: Json = False,
) -> None:
    """Compare two sets of rows key by key."""
    from kernelgen.report.tuning_text import difference_lines
    from kernelgen.tables.difference import difference, read_place

    a, b = read_place(before), read_place(after)
    for problem in (*a.problems, *b.problems):
        console.say(f"warning: {problem}")
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
