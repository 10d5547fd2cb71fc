"""Owns running compilers side by side in child processes that never outlive the command."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TIME_LIMIT_S = 900.0  # one unit takes seconds: beyond this a compiler hangs


@dataclass(frozen=True)
class Job:
    """One command to run in folder `cwd`."""

    label: str
    argv: tuple[str, ...]
    cwd: Path


@dataclass(frozen=True)
class JobResult:
    """How a job ended; `errors` is its stderr (bounded), `seconds` its wall time."""

    job: Job
    returncode: int
    errors: str
    seconds: float


def default_jobs() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def run_jobs(jobs: Sequence[Job], workers: int, done: Callable[[JobResult], None]) -> None:
    """Runs `jobs`, at most `workers` at once, and calls `done` in this thread as each ends.

    Whatever `done` raises, and KeyboardInterrupt, kills the children that still run (with the
    processes they started), forgets the jobs not yet begun and passes on.
    """
    children = _Children()
    with ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="compile") as pool:
        pending: set[Future[JobResult]] = set()
        try:
            pending = {pool.submit(children.run, job) for job in jobs}
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    done(future.result())
        except BaseException:
            for future in pending:
                future.cancel()
            children.kill()
            raise


class _Children:
    """The live child processes of one `run_jobs`."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._live: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, job: Job) -> JobResult:
        start = time.monotonic()
        with self._guard:
            if self._stopped:
                return JobResult(job, -signal.SIGKILL, "stopped", 0.0)
            # An own session, so that killing the group reaches cc1plus and as, not only g++.
            child = subprocess.Popen(
                job.argv,
                cwd=job.cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )
            self._live.add(child)
        try:
            _, errors = child.communicate(timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            _kill(child)
            child.communicate()
            errors = f"took longer than {TIME_LIMIT_S:.0f} s"
        finally:
            with self._guard:
                self._live.discard(child)
        return JobResult(job, child.returncode, errors[:20000], time.monotonic() - start)

    def kill(self) -> None:
        with self._guard:
            self._stopped = True
            for child in self._live:
                _kill(child)


def _kill(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
