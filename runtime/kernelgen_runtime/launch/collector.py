"""Owns keeping Python's collector away while graphs are captured."""

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

    def disable(self) -> None:
        """Stop collecting by itself."""

    def enable(self) -> None:
        """Collect by itself again."""


@contextmanager
def collector_frozen(collector: Collector = gc) -> Iterator[None]:
    """Collect once, then not at all inside the `with`, then once more and go on as before.

    A collection inside a capture may free what the capture uses, and each costs a walk over all
    that torch has imported. The last collect keeps that walk out of serving. Environment variable
    KERNELGEN_KEEP_GC leaves the collector alone, for debugging.
    """
    if os.environ.get(KEEP):
        yield
        return
    was_enabled = collector.isenabled()
    collector.collect()
    collector.freeze()
    collector.disable()
    try:
        yield
    finally:
        collector.unfreeze()
        collector.collect()
        if was_enabled:
            collector.enable()
