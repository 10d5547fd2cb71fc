"""Owns `kernelgen run`: hands every argument to the runtime, which a wheel carries too."""

from __future__ import annotations

import typer

from kernelgen.cli.guard import debug_wanted

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


def run(context: typer.Context) -> None:
    """Generate text with a wheel or build, and print how fast it went."""
    from kernelgen_runtime.cli import main

    debug = ["--debug"] if debug_wanted() else []
    code = main(["run", *context.args, *debug])
    if code:
        raise typer.Exit(code)
