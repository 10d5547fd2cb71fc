"""Compiler processes for many tasks: fed in turn, replaced when they die, killed at the end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from kernelgen.compile.workers import Task, TaskResult, Workshop, run_tasks

WORKER = """
import os, sys, time
group, replies = sys.argv[1], os.fdopen(int(sys.argv[2]), "w")
for line in sys.stdin:
    what = line.strip()
    print(f"{what} was asked", flush=True)
    if what == "die":
        os.abort()
    if what == "leave":
        sys.exit(3)
    if what == "hang":
        time.sleep(600)
    replies.write(f"{group} {what} {os.getpid()}\\n")
    replies.flush()
"""


def shop(folder: Path, limit: float = 60.0) -> Workshop:
    return Workshop(
        lambda group, reply_to: [sys.executable, "-c", WORKER, group, str(reply_to)],
        folder,
        dict(os.environ),
        limit,
    )


def run(folder: Path, *asked: tuple[str, str], workers: int = 2, limit: float = 60.0):
    found: dict[str, TaskResult] = {}
    tasks = [Task(f"{group} {what}", group, what) for group, what in asked]
    run_tasks(tasks, workers, shop(folder, limit), lambda r: found.update({r.task.label: r}))
    assert len(found) == len(asked)
    return found


def test_a_group_keeps_its_workers_and_shares_none(tmp_path: Path) -> None:
    asked = [(group, f"task{i}") for group in "ab" for i in range(6)]
    found = run(tmp_path, *asked)
    pids: dict[str, set[str]] = {"a": set(), "b": set()}
    for (group, what), result in zip(asked, map(found.get, map(" ".join, asked)), strict=True):
        assert result is not None
        replied, task, pid = result.reply.split()
        assert (replied, task) == (group, what) and not result.ended
        assert result.output == f"{what} was asked\n"
        pids[group].add(pid)
    assert not pids["a"] & pids["b"] and len(pids["a"] | pids["b"]) <= 4


def test_a_dead_worker_costs_its_task_only(tmp_path: Path) -> None:
    found = run(tmp_path, ("a", "one"), ("a", "die"), ("a", "leave"), ("a", "two"), workers=1)
    assert found["a die"].ended == "was killed by signal 6" and not found["a die"].reply
    assert found["a leave"].ended == "ended with 3"
    assert found["a die"].output == "die was asked\n"
    assert found["a one"].reply and found["a two"].reply
    assert found["a one"].reply.split()[2] != found["a two"].reply.split()[2]


def test_a_worker_that_hangs_is_killed(tmp_path: Path) -> None:
    found = run(tmp_path, ("a", "hang"), ("a", "one"), workers=1, limit=2.0)
    assert found["a hang"].ended == "took longer than 2 s"
    assert found["a one"].reply


def test_an_error_of_the_caller_kills_every_worker(tmp_path: Path) -> None:
    pids: list[int] = []

    def stop(result: TaskResult) -> None:
        pids.append(int(result.reply.split()[2]))
        raise KeyError("enough")

    tasks = [Task("one", "a", "one"), Task("more", "a", "hang"), Task("b", "b", "hang")]
    start = time.monotonic()
    with pytest.raises(KeyError):
        run_tasks(tasks, 2, shop(tmp_path), stop)
    assert time.monotonic() - start < 30
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_a_command_that_cannot_start_is_told(tmp_path: Path) -> None:
    broken = Workshop(lambda group, reply_to: ["/nonexistent"], tmp_path, {}, 1.0)
    with pytest.raises(FileNotFoundError):
        run_tasks([Task("one", "a", "one")], 1, broken, lambda result: None)
