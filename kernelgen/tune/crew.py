"""Owns the child that measures: started when needed, given a time limit, replaced when it dies."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kernelgen.compile.worker_process import Task, Worker, Workshop
from kernelgen.core.decode import from_json
from kernelgen.core.errors import KernelgenError
from kernelgen.tune.measurer import Canary, Machine, Pair, Sample

T = TypeVar("T")

SETTLE_LIMIT_S = 180.0
OPEN_LIMIT_S = 120.0


class Refused(KernelgenError):
    """The child cannot measure at all here: no device, another device, a damaged bundle."""

    exit_code = 4


class Lost(Exception):
    """The child died, hung or failed; the text says how. The next request goes to a fresh one."""


@dataclass
class Crew:
    """One child at a time. `kind` as `worker.measurer_of` takes it."""

    kind: str
    folder: Path
    """for logs of the children"""
    time_limit_s: float = 20.0
    bundle: Path | None = None
    """where groups come from at the moment"""
    machine: Machine | None = None
    lost: int = 0
    _worker: Worker | None = None
    _started: int = 0
    _shown: str = field(default="", repr=False)

    def settle(self) -> Machine:
        """Start a child, if there is none, and wait for its clocks to settle."""
        if self._worker is None:
            self._started += 1
            self._shown = ""
            self._worker = Worker(self._shop(), "measure", self._started)
            self.machine = self._answer(Machine, {"do": "settle"}, SETTLE_LIMIT_S)
        assert self.machine is not None
        return self.machine

    def use(self, bundle: Path) -> None:
        """Groups come from there from now on; the child stays."""
        self.bundle = bundle.resolve()

    def canary(self) -> Canary:
        """A copy right now."""
        self.settle()
        return self._answer(Canary, {"do": "canary"}, self.time_limit_s)

    def open(self, group: str) -> None:
        """Set a group up, unless it is the one that is shown already."""
        self.settle()
        if self._shown != group:
            self._ask({"do": "open", "group": group}, OPEN_LIMIT_S)
            self._shown = group

    def coarse(self, group: str, candidate: str) -> Sample:
        """Numbers and one sample."""
        self.open(group)
        request = {"do": "coarse", "group": group, "candidate": candidate}
        return self._answer(Sample, request, self.time_limit_s)

    def fine(self, group: str, candidate: str, samples: int) -> Sample:
        """So many samples."""
        self.open(group)
        request = {"do": "fine", "group": group, "candidate": candidate, "samples": samples}
        return self._answer(Sample, request, self.time_limit_s)

    def whole(
        self, step: str, base: Mapping[str, str], trial: Mapping[str, str], samples: int
    ) -> Pair:
        """A step in two ways by turns; the first time it has to be set up."""
        self.settle()
        request = {"do": "whole", "step": step, "base": dict(base), "trial": dict(trial)}
        return self._answer(Pair, {**request, "samples": samples}, OPEN_LIMIT_S)

    def close(self) -> None:
        """End the child."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def kill(self) -> None:
        """End the child at once."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.close()
            self._worker = None

    def _answer(self, cls: type[T], request: Mapping[str, Any], limit_s: float) -> T:
        return from_json(cls, self._ask(request, limit_s), source="the measuring process")

    def _ask(self, request: Mapping[str, Any], limit_s: float) -> Any:
        assert self._worker is not None and self.bundle is not None
        text = json.dumps({**request, "bundle": str(self.bundle)})
        result = self._worker.run(Task(text, "measure", text), limit_s)
        if not result.reply:
            last = [line for line in result.output.strip().splitlines() if line.strip()][-1:]
            self._drop()
            raise Lost(" ".join([result.ended, *last])[:300])
        reply = json.loads(result.reply)
        if "refused" in reply:
            self._drop()
            raise Refused(reply["refused"])
        if "failed" in reply:
            self._drop()
            raise Lost(reply["failed"])
        return reply["value"]

    def _drop(self) -> None:
        self.lost += 1
        self.kill()

    def _shop(self) -> Workshop:
        root = str(Path(__file__).resolve().parents[2])
        above = os.environ.get("PYTHONPATH", "")
        environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{above}" if above else root}
        return Workshop(self._command, self.folder, environment, self.time_limit_s)

    def _command(self, group: str, reply_to: int) -> list[str]:
        module = "kernelgen.tune.worker"
        return [sys.executable, "-P", "-m", module, str(reply_to), self.kind]
