"""Owns the two streams: results go to stdout, everything said about the work to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from kernelgen.core.jsonio import dumps_readable

if TYPE_CHECKING:
    from rich.console import RenderableType


_PIPE_WIDTH = 10_000
MOST_LINES = 10
"""of one kind that are spelled out; the others are counted"""


class Step(Protocol):
    """What a progress display needs to know of one finished step of a long job."""

    @property
    def done(self) -> int:
        """Steps finished so far."""

    @property
    def total(self) -> int:
        """Steps altogether."""

    @property
    def label(self) -> str:
        """What has just been finished."""


def say(text: str) -> None:
    """One line about the work, on stderr."""
    print(text, file=sys.stderr, flush=True)


def say_some(lines: Sequence[str], prefix: str = "") -> None:
    """Lines of one kind on stderr: ten of them, then how many more there are."""
    for line in lines[:MOST_LINES]:
        say(f"{prefix}{line}")
    if len(lines) > MOST_LINES:
        say(f"{prefix}… and {len(lines) - MOST_LINES} more")


def result(text: str) -> None:
    """A result, on stdout."""
    print(text, flush=True)


def result_json(value: object) -> None:
    """A result as JSON, on stdout."""
    sys.stdout.write(dumps_readable(value))
    sys.stdout.flush()


def render(*parts: RenderableType) -> None:
    """Rich tables and text on stdout; plain and never cut off where that is no terminal."""
    from rich.console import Console

    if sys.stdout.isatty():
        Console(highlight=False).print(*parts)
        return
    # A pipe has no width. What is printed is only as wide as its content.
    console = Console(highlight=False, width=_PIPE_WIDTH, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(*parts)
    result("\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines()))


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Iterator[Callable[[Step], None]]:
    """A callback that shows finished steps as a bar on stderr, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TextColumn("{task.fields[label]}"), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(title, total=None, label="")

        def show(step: Step) -> None:
            bar.update(task, completed=step.done, total=step.total, label=step.label[:60])

        yield show
