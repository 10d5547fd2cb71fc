"""Owns one compiler process: requests go to its stdin, replies come on a descriptor of its own."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MOST_OUTPUT = 20000


@dataclass(frozen=True)
class Task:
    """One line for a worker. Tasks of different groups never meet in one process."""

    label: str
    group: str
    request: str


@dataclass(frozen=True)
class TaskResult:
    """How a task ended: `reply` is the worker's line, or empty when `ended` says why none came.

    `output` is what the worker and its children printed meanwhile (bounded), `seconds` wall time.
    """

    task: Task
    reply: str
    output: str
    ended: str
    seconds: float


@dataclass(frozen=True)
class Workshop:
    """How workers are started: `argv` gets the group and the descriptor to reply on."""

    argv: Callable[[str, int], Sequence[str]]
    folder: Path
    environment: Mapping[str, str]
    time_limit_s: float


class Worker:
    """One child process: requests go to its stdin, replies come on a descriptor of their own."""

    def __init__(self, shop: Workshop, group: str, number: int) -> None:
        self._log = shop.folder / f"worker_{number}.log"
        replies, theirs = os.pipe()
        try:
            with self._log.open("wb") as log:
                self._child = subprocess.Popen(
                    shop.argv(group, theirs),
                    cwd=shop.folder,
                    env=dict(shop.environment),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs,),
                    start_new_session=True,  # killing the group reaches ptxas too
                )
        except BaseException:
            os.close(replies)
            raise
        finally:
            os.close(theirs)
        self._replies = replies

    def run(self, task: Task, time_limit_s: float) -> TaskResult:
        start, before = time.monotonic(), self._log.stat().st_size
        reply, ended = "", ""
        try:
            assert self._child.stdin is not None
            self._child.stdin.write(task.request.encode() + b"\n")
            self._child.stdin.flush()
            reply = self._read_line(start + time_limit_s)
        except BrokenPipeError:
            pass  # it died between two tasks
        except TimeoutError:
            ended = f"took longer than {time_limit_s:.0f} s"
        if not reply:
            code = self._end_code(patient=not ended)
            ended = ended or (f"was killed by signal {-code}" if code < 0 else f"ended with {code}")
        with self._log.open("rb") as log:
            log.seek(before)
            output = log.read(_MOST_OUTPUT).decode(errors="replace")
        return TaskResult(task, reply, output, ended, time.monotonic() - start)

    def _read_line(self, until: float) -> str:
        """The reply, or nothing when the worker has closed its end."""
        data, waiting = b"", select.poll()
        waiting.register(self._replies, select.POLLIN)
        while not data.endswith(b"\n"):
            if not waiting.poll(max(0, int(1000 * (until - time.monotonic())))):
                raise TimeoutError
            part = os.read(self._replies, 1 << 16)
            if not part:
                return ""
            data += part
        return data.decode().rstrip("\n")

    def _end_code(self, *, patient: bool) -> int:
        """Exit code of a process that gives no reply; one that is ending shall say how itself."""
        if patient:
            with suppress(subprocess.TimeoutExpired):
                return self._child.wait(timeout=5)
        self.kill()
        return self._child.wait()

    def kill(self) -> None:
        if self._child.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def close(self) -> None:
        """Lets the process end by itself: no more requests come."""
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()
            self._child.wait()
        os.close(self._replies)
