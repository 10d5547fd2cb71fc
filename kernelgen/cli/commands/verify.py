"""Owns `kernelgen verify`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli import console
from kernelgen.cli.options import Activations, Json, Switch, Target
from kernelgen.core.errors import UsageError


class Sanitizer(StrEnum):
    """`--sanitizer`: tools of compute-sanitizer."""

    MEMCHECK = "memcheck"
    RACECHECK = "racecheck"
    SYNCCHECK = "synccheck"


def verify(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Checkpoint folder, or a build.", show_default=False),
    ],
    target: Target = "cpu",
    weights: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoint of a build. [none: kernels and steps only]"),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Recorded cases. [cases.npz of the checkpoint]"),
    ] = None,
    fusion: Annotated[
        Switch | None, typer.Option(help="off: one op a kernel, the same results. [on]")
    ] = None,
    dtype: Annotated[
        Activations | None, typer.Option(help="Type of activations. [float32]")
    ] = None,
    sanitizer: Annotated[
        list[Sanitizer] | None,
        typer.Option(
            help="Launch all kernels of a GPU build under this tool of compute-sanitizer, instead"
            " of comparing them. [none]",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check kernels against their ops, the model against recorded cases.

    A checkpoint is built first. A build is checked as it is, with no compiler and on a machine that
    has what its target needs.
    """
    from kernelgen.cli.model import resolve
    from kernelgen.cli.verification import sanitize_build, verify_build, verify_model
    from kernelgen.report.verdicts import verdict_table

    with console.progress(f"verifying {folder}", quiet=json) as progress:
        if (folder / "manifest.json").is_file():
            for option, value in (("--fusion", fusion), ("--dtype", dtype)):
                if value is not None:
                    raise UsageError("is for checkpoints; a build has its own", where=option)
            if sanitizer:
                if weights is not None or reference is not None:
                    raise UsageError("takes neither --weights nor --reference", where="--sanitizer")
                tools = tuple(dict.fromkeys(tool.value for tool in sanitizer))
                report = sanitize_build(folder, target, tools, progress=progress)
            else:
                report = verify_build(
                    folder, target, weights=weights, reference=reference, progress=progress
                )
        elif sanitizer:
            raise UsageError("is for builds", where="--sanitizer", hint="`kernelgen build` first")
        elif weights is not None:
            raise UsageError("--weights belongs to a build", where=str(folder))
        else:
            report = verify_model(
                resolve(str(folder)),
                target,
                reference=reference,
                fusion=fusion is not Switch.OFF,
                dtype=(dtype or Activations.FLOAT32).value,
                progress=progress,
            )
    if json:
        console.result_json({"passed": report.passed, "summary": report.summary, "report": report})
    else:
        console.render(verdict_table(report.checks))
        console.say(report.summary)
    if not report.passed:
        raise typer.Exit(1)
