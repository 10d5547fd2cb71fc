"""Owns the `serve` command: its line read, its libraries there, its server run."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..clock import process_start
from ..errors import KernelgenRuntimeError
from .arguments import expand
from .flags import add_options

if TYPE_CHECKING:
    from .options import ServeOptions

EXTRA = ("msgspec", "starlette", "uvicorn", "httptools", "prometheus_client", "yaml")


class MissingExtraError(KernelgenRuntimeError):
    """A library of the extra `serve` is not installed."""

    exit_code = 3


def serve_argv(argv: Sequence[str], artifact: str | None) -> list[str]:
    """Return the words after `serve` as the parser reads them. Raises ArgumentsError."""
    return expand(argv, known_options(artifact))


def known_options(artifact: str | None) -> list[str]:
    """Return the names of all options, without dashes."""
    parser = argparse.ArgumentParser()
    add_serve(parser, artifact)
    return [
        name.removeprefix("--")
        for action in parser._actions
        for name in action.option_strings
        if name.startswith("--")
    ]


def add_serve(parser: argparse.ArgumentParser, artifact: str | None) -> None:
    """Add what `serve` takes."""
    if artifact is None:
        parser.add_argument("artifact", help="build folder, installed package or .whl file")
    else:
        parser.set_defaults(artifact=artifact)
    add_options(parser)


def serve(flags: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code. Raises a KernelgenRuntimeError."""
    started = process_start()
    check_extra()
    parser = argparse.ArgumentParser()
    add_serve(parser, flags.artifact)
    from .bind import bind
    from .child import EngineProcess
    from .options import check_places, serve_options

    options = serve_options(flags, parser.parse_args([]))
    check_places(options)
    listener = bind(flags.host, flags.port, flags.uds)
    # The engine's imports take longest: they begin before ours of HTTP and text.
    child = EngineProcess()
    try:
        from .serve import run

        return run(options, listener, child, started)
    finally:
        child.kill()
        listener.close()


def options_of(argv: Sequence[str]) -> "ServeOptions":
    """Return what the words after `serve` ask for. Raises ArgumentsError."""
    from .options import serve_options

    parser = argparse.ArgumentParser()
    add_serve(parser, None)
    flags = parser.parse_args(serve_argv(argv, None))
    return serve_options(flags, parser.parse_args([flags.artifact]))


def check_extra() -> None:
    """Raise MissingExtraError where a library is not there."""
    from importlib.util import find_spec

    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"{', '.join(missing)}: not installed here; pip install 'kernelgen[serve]' "
            "(beside a wheel: its extra of that name)"
        )
