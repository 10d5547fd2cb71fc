"""Owns `kernelgen verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli import console
from kernelgen.cli.options import Activations, Dtype, Fusion, Json, Switch, Target


def verify(
    model_dir: Annotated[
        Path, typer.Argument(metavar="MODEL_DIR", help="Checkpoint folder.", show_default=False)
    ],
    target: Target = "cpu",
    reference: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Recorded cases. [MODEL_DIR/cases.npz if there]"),
    ] = None,
    fusion: Fusion = Switch.ON,
    dtype: Dtype = Activations.FLOAT32,
    json: Json = False,
) -> None:
    """Check kernels against their ops, the model against recorded cases."""
    from kernelgen.cli.model import resolve
    from kernelgen.cli.verification import verify_model
    from kernelgen.report.verdicts import verdict_table

    with console.progress(f"verifying {model_dir}", quiet=json) as progress:
        report = verify_model(
            resolve(str(model_dir)),
            target,
            reference=reference,
            fusion=fusion is Switch.ON,
            dtype=dtype.value,
            progress=progress,
        )
    if json:
        console.result_json({"passed": report.passed, "summary": report.summary, "report": report})
    else:
        console.render(verdict_table(report.checks))
        console.say(report.summary)
    if not report.passed:
        raise typer.Exit(1)
