"""Owns checking all kernels of a build from outside: children started, watched, replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelgen.core.errors import KernelgenError
from kernelgen.verify.built import Built
from kernelgen.verify.checks import Callback, Check, Progress, faults
from kernelgen.verify.child import Child, Under
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
    names = [name for name in kernel_names(built) if kernels is None or name in kernels]
    found: list[Check] = []
    for n, isa in enumerate(chosen):
        tag = f" [{isa}]" if len(chosen) > 1 else ""
        watch = Watch(n * len(names), len(chosen) * len(names), tag, progress, step_seconds)
        found += watch.run(built.folder, isa, names)
    return tuple(found)


def kernel_names(built: Built) -> list[str]:
    """What a worker checks one by one: kernels that stand alone, and of a GPU whole steps."""
    besides = (PREPARE, STEP) if built.on_gpu else ()
    return [*(k.name for k in built.kernels if k.stands_alone), *besides]


@dataclass
class Watch:
    """The kernels of one library; `at` is the progress when they begin.

    `under`: what runs the workers. `flags`: what they are told besides.
    """

    at: int
    total: int
    tag: str
    progress: Callback | None
    step_seconds: float = STEP_SECONDS
    under: Under = field(default_factory=Under)
    flags: tuple[str, ...] = ()
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
        command = ["-m", "kernelgen.verify.worker", *self.flags, *arguments]
        with Child(command, under=self.under) as child:
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
