"""Owns `kernelgen cache info` and `kernelgen cache clean`."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelgen.cli import console
from kernelgen.cli.options import Json

app = typer.Typer(
    help="What compilers produced, kept between builds.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def info(json: Json = False) -> None:
    """Say where the cache is, what it holds and how much."""
    from kernelgen.compile.store import Store
    from kernelgen.report.figures import bytes_text

    found = Store().info()
    if json:
        console.result_json(found)
        return
    days = found.oldest_use_s / 86400
    age = f", the oldest unused for {days:.1f} days" if found.entries else ""
    console.result(f"{found.root}: {found.entries} entries, {bytes_text(found.bytes)}{age}")


def clean(
    older_than: Annotated[
        float | None,
        typer.Option(min=0, metavar="DAYS", help="Only what was not used for so long. [all]"),
    ] = None,
    json: Json = False,
) -> None:
    """Remove cached artefacts; without a limit also the demo's model and build."""
    from dataclasses import replace

    from kernelgen.cli.demo_model import remove_demo
    from kernelgen.compile.store import Store
    from kernelgen.report.figures import bytes_text

    removed = Store().clean(max_age_s=None if older_than is None else older_than * 86400)
    if older_than is None:
        removed = replace(removed, bytes=removed.bytes + remove_demo())
    if json:
        console.result_json(removed)
        return
    console.result(f"removed {removed.entries} entries, {bytes_text(removed.bytes)}")


app.command("info")(info)
app.command("clean")(clean)
