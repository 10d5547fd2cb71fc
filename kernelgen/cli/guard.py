"""Owns how a command ends: one line on stderr and an exit code, a traceback only on request."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from kernelgen.core.errors import Interrupted, KernelgenError, UsageError

DEBUG_VARIABLE = "KERNELGEN_DEBUG"


def debug_wanted() -> bool:
    """Whether tracebacks were asked for, by `--debug` or the environment."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def report_error(error: BaseException) -> int:
    """Prints what `error` means to a user and returns the exit code of `docs/contracts.md`."""
    if isinstance(error, BrokenPipeError):
        # The reader has gone (`| head`): flushing at exit must not complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    show = getattr(error, "show", None)
    if callable(show) and type(error).__name__ == "NoArgsIsHelpError":
        show()
        return UsageError.exit_code
    if debug_wanted():
        traceback.print_exception(error)
    line, code = _meaning(error)
    print(f"error: {line}", file=sys.stderr, flush=True)
    return code


def _meaning(error: BaseException) -> tuple[str, int]:
    if isinstance(error, KernelgenError):
        return str(error), error.exit_code
    if callable(wording := getattr(error, "format_message", None)):  # the option parser's own
        path = getattr(getattr(error, "ctx", None), "command_path", "kernelgen")
        return f"{wording().rstrip('.')}; see `{path} --help`", UsageError.exit_code
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return "interrupted; the same command resumes", Interrupted.exit_code
    code = getattr(error, "exit_code", None)  # errors of the runtime, which shares no class with us
    if isinstance(code, int):
        return str(error), code
    name = type(error).__name__
    return f"unexpected {name}: {error}; run again with --debug for the traceback", 1
