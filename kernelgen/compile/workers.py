"""Owns compiler processes that live for many tasks: fed one at a time, killed with the command."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

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


def run_tasks(
    tasks: Sequence[Task], workers: int, shop: Workshop, done: Callable[[TaskResult], None]
) -> None:
    """Runs `tasks` in at most `workers` processes at once; calls `done` in this thread for each.

    A worker that dies or outlives the limit costs its task only: the rest goes to a new one.
    Whatever `done` raises, and KeyboardInterrupt, kills all workers (with the processes that they
    started) and passes on.
    """
    crew = _Crew(tasks, shop)
    threads = [threading.Thread(target=crew.work, daemon=True) for _ in range(max(1, workers))]
    try:
        for thread in threads[: len(tasks)]:
            thread.start()
        for _ in tasks:
            result = crew.results.get()
            if isinstance(result, BaseException):
                raise result
            done(result)
    except BaseException:
        crew.stop()
        raise
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()


class _Crew:
    """Queues by group and the live workers of one `run_tasks`."""

    def __init__(self, tasks: Sequence[Task], shop: Workshop) -> None:
        self.results: SimpleQueue[TaskResult | BaseException] = SimpleQueue()
        self._shop = shop
        self._guard = threading.Lock()
        self._queues: dict[str, deque[Task]] = {}
        for task in tasks:
            self._queues.setdefault(task.group, deque()).append(task)
        self._serving = dict.fromkeys(self._queues, 0)
        self._live: set[_Worker] = set()
        self._started = 0
        self._stopped = False

    def work(self) -> None:
        """What each thread does: serve one group after the other until nothing is left."""
        try:
            while (group := self._choose()) is not None:
                self._serve(group)
        except BaseException as error:  # told to the waiting thread, which ends the build
            self.results.put(error)

    def stop(self) -> None:
        with self._guard:
            self._stopped = True
            for worker in self._live:
                worker.kill()

    def _choose(self) -> str | None:
        """The group with most tasks for each worker; a second worker has to find two of them."""
        with self._guard:
            load = {g: len(q) / (self._serving[g] + 1) for g, q in self._queues.items()}
            group = max(load, key=lambda g: load[g], default=None)
            if group is None or self._stopped or load[group] == 0:
                return None
            if self._serving[group] and len(self._queues[group]) < 2:
                return None
            self._serving[group] += 1
            return group

    def _serve(self, group: str) -> None:
        worker: _Worker | None = None
        try:
            while (task := self._next(group)) is not None:
                worker = worker or self._start(group)
                result = worker.run(task, self._shop.time_limit_s)
                self.results.put(result)
                if not result.reply:
                    self._end(worker)
                    worker = None
        finally:
            if worker is not None:
                self._end(worker)
            with self._guard:
                self._serving[group] -= 1

    def _next(self, group: str) -> Task | None:
        with self._guard:
            queue = self._queues[group]
            return queue.popleft() if queue and not self._stopped else None

    def _start(self, group: str) -> _Worker:
        with self._guard:
            self._started += 1
            worker = _Worker(self._shop, group, self._started)
            self._live.add(worker)
            if self._stopped:
                worker.kill()
        return worker

    def _end(self, worker: _Worker) -> None:
        with self._guard:
            self._live.discard(worker)
        worker.close()


class _Worker:
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
