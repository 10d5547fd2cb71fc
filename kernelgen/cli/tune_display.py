"""Owns what `kernelgen tune` shows while it works: live on a terminal, lines everywhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelgen.cli import console
from kernelgen.compile.cpp import BuildStep
from kernelgen.tune.sweep import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

_LINE_EVERY_S = 5.0
_RECENT = 12


@dataclass
class Display:
    """Callbacks for compilers and for the sweep; either may come from its own thread."""

    title: str
    quiet: bool = False
    recent: deque[Progress] = field(default_factory=lambda: deque(maxlen=_RECENT))
    now: Progress | None = None
    compiled_step: BuildStep | None = None
    saved: list[float] = field(default_factory=list)
    """today's time over the best, of groups where both are known"""
    _told: float = -_LINE_EVERY_S
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def compiled(self, step: BuildStep) -> None:
        """A compiler has finished; a line every few seconds, and one at the end."""
        with self._lock:
            self.compiled_step = step
            last, now = step.done == step.total, time.monotonic()
            if not last and now - self._told < _LINE_EVERY_S:
                return
            self._told = now
        self._say(f"compiled {step.done}/{step.total} {step.label}")

    def measured(self, step: Progress) -> None:
        """A candidate has been measured, or a group is done."""
        with self._lock:
            self.now = None if step.finished else step
            if not step.finished:
                return
            self.recent.append(step)
            if step.us and step.before_us:
                self.saved.append(step.before_us / step.us)
        self._say(f"[{step.seconds:6.1f} s] {step.done}/{step.total} {step.label}")

    def _say(self, line: str) -> None:
        if not self.quiet and not sys.stderr.isatty():
            console.say(line)

    def __rich__(self) -> RenderableType:
        """Two bars, the groups that were done last, and the one that is on."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        with self._lock:
            recent, now, step, saved = list(self.recent), self.now, self.compiled_step, self.saved
            bars = Table.grid(padding=(0, 1))
            if step is not None:
                bar = ProgressBar(total=step.total or 1, completed=step.done, width=40)
                bars.add_row("compiled", bar, f"{step.done}/{step.total}", step.label[:40])
            last = now or (recent[-1] if recent else None)
            if last is not None:
                bar = ProgressBar(total=last.total or 1, completed=last.done, width=40)
                gain = f"{sum(saved) / len(saved):.2f} × today on average" if saved else ""
                bars.add_row("measured", bar, f"{last.done}/{last.total}", gain)
            lines = Table.grid(padding=(0, 2))
            for one in (*recent, *([now] if now else [])):
                lines.add_row(*_cells(one))
        return Group(self.title, bars, lines)


def _cells(step: Progress) -> tuple[str, ...]:
    best = "–" if step.us is None else f"{step.us:.2f} µs"
    today = "" if step.before_us is None else f"today {step.before_us:.2f}"
    return (step.kernel[:36], step.bucket, best, today, step.note[:60])


@contextmanager
def display(title: str, *, quiet: bool = False) -> Iterator[Display]:
    """A display that lives as long as the work; nothing at all when it is quiet."""
    shown = Display(title, quiet)
    if quiet or not sys.stderr.isatty():
        yield shown
        return
    from rich.console import Console
    from rich.live import Live

    screen = Console(stderr=True)
    with Live(shown, console=screen, refresh_per_second=4, transient=True):
        yield shown
