"""Owns the bar that shows on a terminal how far the weights are."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..weights.load import Told, no_one

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_SECONDS = 0.5
"""A load that is done by then shows nothing, and does not wait for the bar's own imports."""


@contextmanager
def loading_bar() -> Iterator[Told]:
    """What `LLM` may tell the bytes that are loaded; nobody hears it where no terminal is there.

    The bar goes away at the end, an error or an interrupt included.
    """
    if not sys.stderr.isatty():
        yield no_one
        return
    begun = time.perf_counter()
    bar: Progress | None = None

    def tell(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            if time.perf_counter() - begun < PATIENCE_SECONDS:
                return
            bar = _bar(total)
        bar.update(bar.task_ids[0], completed=done)

    try:
        yield tell
    finally:
        if bar is not None:
            bar.stop()


def _bar(total: int) -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        TextColumn("weights"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("weights", total=total)
    bar.start()
    return bar
