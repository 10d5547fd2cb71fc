"""Owns keeping Python's collector away: from what was imported, and while graphs are captured."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

KEEP = "KERNELGEN_KEEP_GC"


class Collector(Protocol):
    """What of module `gc` is used."""

    def isenabled(self) -> bool:
        """Whether it collects by itself."""

    def collect(self) -> int:
        """Collect now."""

    def freeze(self) -> None:
        """Take all objects out of its sight."""

    def unfreeze(self) -> None:
        """Bring them back."""

    def get_freeze_count(self) -> int:
        """Return how many objects are out of its sight."""

    def disable(self) -> None:
        """Stop collecting by itself."""

    def enable(self) -> None:
        """Collect by itself again."""


@contextmanager
def importing(collector: Collector = gc) -> Iterator[None]:
    """Import torch and what else a process keeps to its end; it is never looked at again.

    Collections take 15% of that import and find nothing, and each later one, in serving too, would
    walk over all of it. For a process of ours only: what is garbage by then stays as well.
    """
    if os.environ.get(KEEP):
        yield
        return
    was_enabled = collector.isenabled()
    collector.disable()
    try:
        yield
    finally:
        collector.freeze()
        if was_enabled:
            collector.enable()


@contextmanager
def collector_frozen(collector: Collector = gc) -> Iterator[None]:
    """Collect once, then not at all inside the `with`, then once more and go on as before.

    A collection inside a capture may free what the capture uses, and each costs a walk over all
    that torch has imported, unless it was imported by `importing`: then nothing has to be frozen,
    nor to come back. The last collect keeps its walk out of serving. Environment variable
    KERNELGEN_KEEP_GC leaves the collector alone, for debugging.
    """
    if os.environ.get(KEEP):
        yield
        return
    was_enabled, is_free = collector.isenabled(), collector.get_freeze_count() == 0
    collector.collect()
    if is_free:
        collector.freeze()
    collector.disable()
    try:
        yield
    finally:
        if is_free:
            collector.unfreeze()
        collector.collect()
        if was_enabled:
            collector.enable()
