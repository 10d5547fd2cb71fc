"""Owns compiler processes that live for many tasks: fed one at a time, killed with the command."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from kernelgen.compile.worker_process import Task, TaskResult, Worker, Workshop

__all__ = ("Task", "TaskResult", "Workshop", "run_tasks")


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
        self._live: set[Worker] = set()
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
        worker: Worker | None = None
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

    def _start(self, group: str) -> Worker:
        with self._guard:
            self._started += 1
            worker = Worker(self._shop, group, self._started)
            self._live.add(worker)
            if self._stopped:
                worker.kill()
        return worker

    def _end(self, worker: Worker) -> None:
        with self._guard:
            self._live.discard(worker)
        worker.close()
