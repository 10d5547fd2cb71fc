"""Owns `kernelgen inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli import console
from kernelgen.cli.options import Json
from kernelgen.core.errors import UsageError


def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="WHEEL_OR_BUILD", help="What to look at.", show_default=False)
    ],
    other: Annotated[
        Path | None,
        typer.Argument(metavar="OTHER", help="Show how this one differs.", show_default=False),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option(metavar="NAME", help="Show one kernel with its source.")
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option(metavar="N", help="Show what N tensor-parallel ranks load of the checkpoint."),
    ] = None,
    ep: Annotated[
        int | None,
        typer.Option(metavar="N", help="The same where experts are dealt out to N ranks."),
    ] = None,
    json: Json = False,
) -> None:
    """Show a wheel or build, one of its kernels, its slices by rank, or how two builds differ."""
    from kernelgen.pack.contents import read_contents
    from kernelgen.pack.diff import diff_builds
    from kernelgen.pack.inspect import kernel_source, kernels, summarise
    from kernelgen.pack.slices import slice_map
    from kernelgen.report import build_text, slices_text

    chosen = [other is not None, kernel is not None, tp is not None or ep is not None]
    if sum(chosen) > 1:
        what = "OTHER, --kernel, and --tp with --ep"
        raise UsageError(f"one of {what} at a time", hint="leave out the others")
    built = read_contents(path)
    if other is not None:
        difference = diff_builds(built, read_contents(other))
        _print(json, difference, build_text.diff_text(difference))
    elif kernel is not None:
        source = kernel_source(built, kernel)
        facts = next(k for k in kernels(built) if k.name == kernel)
        value = {"kernel": facts, "text": source}
        _print(json, value, build_text.kernel_text(facts, source))
    elif tp is not None or ep is not None:
        ranks = slice_map(built.manifest, tp or 1, ep or 1)
        _print(json, {"ranks": ranks}, slices_text.slices_text(built.source, ranks))
    else:
        summary = summarise(built)
        _print(json, summary, build_text.summary_text(summary))


def _print(json: bool, value: object, text: str) -> None:
    if json:
        console.result_json(value)
    else:
        console.result(text)
