"""Owns compiling ahead of the measurements: a thread that makes parts while others are measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

from kernelgen.compile.cpp import BuildStep
from kernelgen.compile.store import Store
from kernelgen.tune.bundle_file import write_bundle
from kernelgen.tune.emit import Emitter
from kernelgen.tune.sweep import Part


class _Stopped(Exception):
    """Nobody waits for the parts any more."""


@dataclass
class Ahead:
    """Parts of a wish as they get ready, each in a file of its own below `folder`.

    A context manager: leaving it stops the compilers. What the thread raises is raised where the
    next part is asked for.
    """

    emitter: Emitter
    store: Store
    folder: Path
    jobs: int | None = None
    done: Collection[str] = ()
    """ids of groups that need not be compiled"""
    progress: Callable[[BuildStep], None] = lambda step: None
    _ready: SimpleQueue[Part | BaseException | None] = field(default_factory=SimpleQueue)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _offset: int = 0

    def __enter__(self) -> Ahead:
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __iter__(self) -> Iterator[Part]:
        """Waits for each part."""
        while (part := self._ready.get()) is not None:
            if isinstance(part, BaseException):
                raise part
            yield part

    def _work(self) -> None:
        try:
            parts = list(self.emitter.parts(self.done))
            sizes = [
                len({u.name for p in part for t in p.tiles for u in t.units}) for part in parts
            ]
            total = sum(sizes)
            for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
                made = self.emitter.emitted(
                    part, self.store, jobs=self.jobs, progress=lambda s: self._told(s, total)
                )
                self._offset += size
                path = self.folder / f"part_{number}"
                write_bundle(path, made.bundle, made.codes)
                self._ready.put(Part(path, made.bundle, len(part) - len(made.bundle.groups)))
            self._ready.put(None)
        except _Stopped:
            pass
        except BaseException as error:
            self._ready.put(error)

    def _told(self, step: BuildStep, total: int) -> None:
        """A step of the whole; ends the thread, and its compilers, where it was stopped."""
        if self._stop.is_set():
            raise _Stopped
        self.progress(
            BuildStep(self._offset + step.done, total, step.label, step.cached, step.seconds)
        )
