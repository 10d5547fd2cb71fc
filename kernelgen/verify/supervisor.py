"""Owns checking all kernels of a build from outside: children started, watched, replaced."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import kernelgen
from kernelgen.core.errors import KernelgenError
from kernelgen.verify.built import Built
from kernelgen.verify.checks import Callback, Check, Progress, faults
from kernelgen.verify.library import PREPARE
from kernelgen.verify.model_bounds import TINY_PARAMETERS
from kernelgen.verify.step_checks import STEP

STEP_SECONDS = 300.0
"""a step of one kernel takes seconds, its reference included, even at published sizes"""
START_SECONDS = 120.0
"""until a child has imported everything, on a busy machine"""


def check_kernels(
    built: Built,
    *,
    isas: Sequence[str] | None = None,
    kernels: Sequence[str] | None = None,
    progress: Callback | None = None,
    step_seconds: float = STEP_SECONDS,
) -> tuple[Check, ...]:
    """Every kernel, or the named ones, in the named libraries; of a GPU whole steps as well.

    `isas` None: every library that this machine runs for a tiny model, else the best one, which is
    the one that a runtime takes. A kernel that crashes or exceeds `step_seconds` in one step is a
    missed check, and the others go on in a new process.
    """
    libraries = built.libraries()
    count = len(libraries) if built.parameters <= TINY_PARAMETERS else 1
    chosen = list(libraries)[:count] if isas is None else list(isas)
    unknown = [isa for isa in chosen if isa not in libraries]
    if unknown or not chosen:
        text = f"no library for {', '.join(unknown) or 'this machine'} that can run here"
        raise KernelgenError(text, where=str(built.folder), allowed=", ".join(libraries) or "none")
    besides = (PREPARE, STEP) if built.on_gpu else ()
    known = [*(k.name for k in built.kernels if k.stands_alone), *besides]
    names = [name for name in known if kernels is None or name in kernels]
    found: list[Check] = []
    for n, isa in enumerate(chosen):
        tag = f" [{isa}]" if len(chosen) > 1 else ""
        watch = _Watch(n * len(names), len(chosen) * len(names), tag, progress, step_seconds)
        found += watch.run(built.folder, isa, names)
    return tuple(found)


@dataclass
class _Watch:
    """The kernels of one library; `at` is the progress when they begin."""

    at: int
    total: int
    tag: str
    progress: Callback | None
    step_seconds: float
    checks: list[Check] = field(default_factory=list)

    def run(self, folder: Path, isa: str, names: Sequence[str]) -> list[Check]:
        left = list(names)
        while left:
            done = self._child([str(folder), isa, *left])
            left = left[max(1, done) :]
        return self.checks

    def _child(self, arguments: Sequence[str]) -> int:
        """Runs one child until it ends; returns how many kernels are dealt with."""
        names, done, step = arguments[2:], 0, "start"
        with Child(["-m", "kernelgen.verify.worker", *arguments]) as child:
            for line in child.lines(self.step_seconds, START_SECONDS):
                message = json.loads(line)
                if not message:
                    continue
                if "checks" in message:
                    self.checks += [self._tagged(data) for data in message["checks"]]
                    done += 1
                    self._show(message["kernel"])
                    step = "start"
                else:
                    step = message["step"]
            end = child.end()
        if end and done < len(names):
            name = names[done] + self.tag
            self.checks.append(faults(name, "ends", 1, 1, f"{step}: {end}"))
            self._show(names[done])
            done += 1
        elif not end and not done:
            raise KernelgenError("the child that runs kernels ended without a word")
        return done

    def _tagged(self, data: Mapping[str, Any]) -> Check:
        return Check(**{**data, "subject": data["subject"] + self.tag})

    def _show(self, name: str) -> None:
        self.at += 1
        if self.progress is not None:
            self.progress(Progress(self.at, self.total, name + self.tag))


class Child:
    """A Python child of ours whose stdout is read line by line with a time limit."""

    def __init__(self, arguments: Sequence[str], path: Sequence[Path] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=child_environment(path),
        )
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._late = 0.0
        assert self._process.stdout is not None and self._process.stderr is not None
        self._threads = [
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._keep, args=(self._process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def lines(self, seconds: float, first_seconds: float = 0.0) -> Iterator[str]:
        """Lines until the child ends; one that is silent for `seconds` is killed.

        `first_seconds`: how long the first line may take, if that is longer.
        """
        limit = max(seconds, first_seconds)
        while True:
            try:
                line = self._queue.get(timeout=limit)
            except queue.Empty:
                self._late = limit
                self._process.kill()
                return
            if line is None:
                return
            limit = seconds
            yield line

    def end(self) -> str:
        """How the child has ended, in words; nothing for a good end."""
        code = self._process.wait()
        for thread in self._threads:
            thread.join(timeout=5)
        if self._late:
            return f"hung: no word for {self._late:g} s"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        said = next((text for text in reversed(self._errors) if text.strip()), "")
        return f"ended with code {code}: {said.strip()}" if code else ""

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._queue.put(line)
        self._queue.put(None)

    def _keep(self, stream: IO[str]) -> None:
        for line in stream:
            self._errors = [*self._errors[-19:], line]


def child_environment(path: Sequence[Path] = ()) -> dict[str, str]:
    """The environment with our package, and `path`, found first."""
    folders = [str(p) for p in (*path, Path(kernelgen.__file__).resolve().parent.parent)]
    known = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*folders, known] if known else folders),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
