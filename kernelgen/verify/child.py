"""Owns a Python child process of ours: read line by line with a time limit, its end in words."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import kernelgen


class Under:
    """A program that runs children of ours and looks at what they do."""

    def command(self) -> list[str]:
        """What stands before the child's own command; asked anew for each child."""
        return []

    def environment(self) -> Mapping[str, str]:
        """Variables that the child has besides."""
        return {}


class Child:
    """A Python child of ours whose stdout is read line by line with a time limit."""

    def __init__(
        self, arguments: Sequence[str], path: Sequence[Path] = (), under: Under | None = None
    ) -> None:
        under = under or Under()
        around = under.command()
        self._process = subprocess.Popen(
            [*around, sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**child_environment(path), **under.environment()},
            start_new_session=bool(around),
        )
        self._is_group = bool(around)
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
                self._kill()
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
            self._kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _kill(self) -> None:
        """The child, and where a program runs it, both."""
        if self._is_group:
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()

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
