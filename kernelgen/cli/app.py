"""Owns the command line: which verbs there are, global options, and the process's exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from kernelgen import __version__
from kernelgen.cli.commands import (
    bench,
    build,
    cache,
    demo,
    doctor,
    inspect,
    models,
    plan,
    run,
    serve,
    tables,
    tune,
    verify,
    watermark,
)
from kernelgen.cli.guard import DEBUG_VARIABLE, report_error

_TYPER_INTERRUPTED = 130  # what typer makes of KeyboardInterrupt in a command

app = typer.Typer(
    name="kernelgen",
    help="Compile a language model's description into a self-contained serving wheel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # decorated help would take twice the time to import
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Command modules import nothing heavy at the top: `--help` must not wait for torch.
app.command("build")(build.build)
app.command("plan")(plan.plan)
app.command("run", context_settings=run.PASS_THROUGH, add_help_option=False)(run.run)
app.command("serve", context_settings=serve.PASS_THROUGH, add_help_option=False)(serve.serve)
app.command("verify")(verify.verify)
app.command("bench")(bench.bench)
app.command("tune")(tune.tune)
app.command("inspect")(inspect.inspect)
app.command("models")(models.models)
app.add_typer(cache.app, name="cache")
app.add_typer(tables.app, name="tables")
app.add_typer(watermark.app, name="watermark")
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"kernelgen {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Show tracebacks (also {DEBUG_VARIABLE}=1).")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line (`sys.argv` when `argv` is None) and exits the process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--debug" in own[1:]:  # people append it to the command that has just failed
        arguments.remove("--debug")
        arguments.insert(0, "--debug")
    try:
        code = app(args=arguments, prog_name="kernelgen", standalone_mode=False)
        if code == _TYPER_INTERRUPTED:
            raise KeyboardInterrupt
    except (Exception, KeyboardInterrupt) as error:
        code = report_error(error)
    sys.exit(code if isinstance(code, int) else 0)
