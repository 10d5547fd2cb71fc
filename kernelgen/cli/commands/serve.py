"""Owns `kernelgen serve`: hands every argument to the runtime, which a wheel carries too."""

from __future__ import annotations

import typer

from kernelgen.cli.guard import debug_wanted

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


def serve(context: typer.Context) -> None:
    """Answer over HTTP, as the OpenAI API does, with a wheel or build."""
    from kernelgen_runtime.cli import main

    debug = ["--debug"] if debug_wanted() else []
    code = main(["serve", *context.args, *debug])
    if code:
        raise typer.Exit(code)
