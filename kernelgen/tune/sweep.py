"""Owns the sweep: groups in the order of what they may gain, measured, judged and written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelgen.core.errors import NoDeviceError
from kernelgen.core.jsonio import to_json
from kernelgen.tune.bundle import Bundle, Candidate, Group, StepFacts
from kernelgen.tune.checkpoints import Kept, kept, vouch
from kernelgen.tune.crew import Crew, Lost
from kernelgen.tune.findings import Found, finalists, group_line, is_quiet
from kernelgen.tune.in_step import InStep
from kernelgen.tune.journal import Notes, finished
from kernelgen.tune.measurer import Canary, Machine, Sample

_ATTEMPTS = 3
_PAUSES = (0.0, 0.1, 0.3)
"""seconds before each look at the device, until it is quiet"""
_GIVE_UP_AFTER = 4
"""disturbed groups in a row after which each gets one attempt: the neighbour is here to stay"""


@dataclass(frozen=True)
class Settings:
    """How long and how thoroughly."""

    minutes: float | None = None
    samples: int = 9


@dataclass(frozen=True)
class Part:
    """Groups that are ready to be measured, and the file that they are read from."""

    path: Path
    bundle: Bundle
    dropped: int = 0
    """groups of which no candidate is legal"""


@dataclass(frozen=True)
class Progress:
    """What a display may want to know while a group is measured, and once it is done."""

    done: int
    total: int
    kernel: str
    bucket: str
    us: float | None
    """the fastest right time so far"""
    before_us: float | None
    """what builds do today"""
    note: str
    finished: bool
    seconds: float

    @property
    def label(self) -> str:
        """The group and how it ended."""
        told = "nothing that is right" if self.us is None else f"{self.us:.2f} µs"
        if self.us is not None and self.before_us is not None:
            told += f" (today {self.before_us:.2f})"
        return f"{self.kernel} {self.bucket}: {told}{', ' if self.note else ''}{self.note}"


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended."""

    measured: int
    """groups, in this run"""
    resumed: int
    """groups that an earlier run had finished"""
    left: int
    flagged: int
    bad: int
    """candidates that crashed, hung or were wrong"""
    seconds: float
    machine: Machine | None
    decided: int = 0
    """kernels whose tile was chosen inside a whole step, in this run"""
    undecided: int = 0


@dataclass
class Sweep:
    """One run over the parts of one bundle with one child."""

    crew: Crew
    journal: Notes
    settings: Settings = Settings()
    tell: Callable[[Progress], None] = lambda progress: None
    clock: Callable[[], float] = time.monotonic
    total: int = 0
    """groups of all parts"""
    done: int = 0
    decided: int = 0
    undecided: int = 0
    """kernels whose tile is chosen inside a whole step, and those that are left for another run"""
    _restless: int = 0
    _began: float = 0.0

    def run(self, parts: Iterable[Part], resumed: int = 0) -> Outcome:
        """Measures what the journal does not hold yet; `resumed`: groups that it holds and no part
        has. `Refused` where nothing can be measured.
        """
        self._began = self.clock()
        known = finished(self.journal)
        measured = 0
        machine: Machine | None = None
        for part in parts:
            self.crew.use(part.path)
            self.total -= part.dropped
            todo = [g for g in in_order(part.bundle.groups) if known.get(g.id) != g.code]
            resumed += len(part.bundle.groups) - len(todo)
            self.done = resumed + measured
            for group in todo:
                if self.over():
                    break
                machine = self.group(part.bundle, group)
                measured += 1
            for step in part.bundle.steps:
                machine = self.step(part.bundle, step) or machine
            if self.over():
                break
        done = outcome(
            self.journal,
            measured=measured,
            resumed=resumed,
            left=max(0, self.total - measured - resumed),
            seconds=round(self.clock() - self._began, 1),
            machine=machine or self.crew.machine,
        )
        return replace(done, decided=self.decided, undecided=self.undecided)

    def step(self, bundle: Bundle, step: StepFacts) -> Machine | None:
        """Tries near candidates inside a whole step, as long as there is time."""
        date = str(next(self.journal.of("begin"))["date"])

        def tell(group: Group, note: str, us: float, before: float) -> None:
            seconds = self.clock() - self._began
            told = f"in the step of {group.bucket}: {note}"
            self.tell(
                Progress(
                    self.done, max(self.total, self.done), group.kernel, group.bucket, us or None,
                    before or None, told, True, seconds,
                )
            )  # fmt: skip

        inside = InStep(self.crew, self.journal, bundle, step, self.over, date, tell)
        self.decided += inside.run()
        self.undecided += inside.left()
        return self.crew.machine

    def over(self) -> bool:
        """Whether the time that was given is spent."""
        minutes = self.settings.minutes
        return minutes is not None and self.clock() - self._began >= 60 * minutes

    def group(self, bundle: Bundle, group: Group) -> Machine:
        """Measures one group until the device was quiet all the while, and writes down how."""
        attempts = 1 if self._restless >= _GIVE_UP_AFTER else _ATTEMPTS
        found: Found | None = None
        flag = ""
        for attempt in range(attempts):
            try:
                found = self._attempt(group, attempt)
            except Lost as error:
                flag = f"could not be set up: {error}"
                break
            flag = "" if found.quiet else found.why
            if found.quiet:
                break
        self._restless = self._restless + 1 if flag else 0
        date = str(next(self.journal.of("begin"))["date"])
        self.journal.add("group", durable=True, **group_line(bundle, group, found, flag, date))
        best = found.best(group) if found else None
        self.done += 1
        before = found.us(group.before) if found else None
        self._tell(group, best[1] if best else None, before, flag, finished=True)
        machine = found.machine if found else self.crew.machine
        assert machine is not None
        return machine

    def _tell(
        self, group: Group, us: float | None, before: float | None, note: str, *, finished: bool
    ) -> None:
        seconds = self.clock() - self._began
        bucket, total = group.bucket, max(self.total, self.done)
        self.tell(
            Progress(self.done, total, group.kernel, bucket, us, before, note, finished, seconds)
        )

    def _settled(self) -> Machine:
        """The device with settled clocks; a child that dies meanwhile is given one more chance,
        then `NoDeviceError` ends the run.
        """
        before = self.crew.machine
        try:
            machine = self.crew.settle()
        except Lost:
            try:
                machine = self.crew.settle()
            except Lost as error:
                raise NoDeviceError(
                    f"the process that measures does not start: {error}",
                    hint="repeat the command: what was measured is kept",
                ) from error
        if machine != before:
            self.journal.add("machine", machine=to_json(machine))
        return machine

    def _attempt(self, group: Group, attempt: int) -> Found:
        """Measures every candidate once. What a run that was killed has measured on a device that
        was quiet before and after is not measured again: each time that decides is drawn once.
        """
        machine = self._settled()
        self.crew.open(group.id)
        before = self._canary(_PAUSES)
        ceiling = machine.canary.gb_s
        calm = is_quiet(before, ceiling)
        have = kept(self.journal, group, machine) if calm and not attempt else Kept()
        coarse: dict[str, Mapping[str, Any]] = {}
        fine: dict[str, Mapping[str, Any]] = {}
        for candidate in group.candidates:
            name = candidate.id
            coarse[name] = have.coarse.get(name) or self._coarse(group, candidate, attempt)
            right = [min(c["us"]) for c in coarse.values() if c["us"] and not c["bad"]]
            self._tell(group, min(right, default=None), None, name, finished=False)
        if calm and len(have.coarse) < len(coarse):
            vouch(self.journal, group, machine, self._canary(_PAUSES[:1]), coarse, fine)
        for candidate in finalists(group, coarse):
            name = candidate.id
            line = have.fine.get(name) or self._fine(group, candidate, attempt)
            if line["us"]:
                fine[name] = line
            if calm and name not in have.fine:
                vouch(self.journal, group, machine, self._canary(_PAUSES[:1]), coarse, fine)
        after = self._canary(_PAUSES if is_quiet(before, ceiling) else _PAUSES[:1])
        return Found(machine, (before, after), ceiling, coarse, fine)

    def _canary(self, pauses: Sequence[float]) -> Canary:
        """Large products take so much power that the clocks drop: a copy that is slow for that
        reason is not slow for long, and one that shares the device with a neighbour is.
        """
        for pause in pauses:
            time.sleep(pause)
            try:
                found = self.crew.canary()
            except Lost:
                self._settled()
                found = self.crew.canary()
            if is_quiet(found, self._settled().canary.gb_s):
                break
        return found

    def _coarse(self, group: Group, candidate: Candidate, attempt: int) -> Mapping[str, Any]:
        """The candidate's line. What crashed, hung or was wrong once is not tried again."""
        place: dict[str, Any] = {"group": group.id, "candidate": candidate.id, "attempt": attempt}
        for line in self.journal.about("coarse", group.id, candidate.id):
            if line["bad"] and line.get("code") == candidate.source:
                return line
        try:
            sample = self.crew.coarse(group.id, candidate.id)
        except Lost as error:
            self._lost(candidate, place, error)
        else:
            wrong = f"wrong by {sample.share:.3g} bounds; {sample.note}"
            self.journal.add(
                "coarse",
                **place,
                us=list(sample.us),
                share=round(sample.share, 4),
                bad="" if sample.share <= 1 + 1e-6 else wrong,
                code=candidate.source,
                **_elsewhere(sample),
            )
        return self.journal.about("coarse", group.id, candidate.id)[-1]

    def _fine(self, group: Group, candidate: Candidate, attempt: int) -> Mapping[str, Any]:
        place: dict[str, Any] = {"group": group.id, "candidate": candidate.id, "attempt": attempt}
        try:
            sample = self.crew.fine(group.id, candidate.id, self.settings.samples)
        except Lost as error:
            self._lost(candidate, place, error)
            sample = Sample((), 0.0)
        self.journal.add(
            "fine", **place, us=list(sample.us), code=candidate.source, **_elsewhere(sample)
        )
        return self.journal.about("fine", group.id, candidate.id)[-1]

    def _lost(self, candidate: Candidate, place: Mapping[str, Any], error: Lost) -> None:
        """A candidate that took its process along; the group is set up again for the next one."""
        self.journal.add(
            "coarse", **place, us=[], share=None, bad=str(error), code=candidate.source
        )
        self._settled()
        self.crew.open(str(place["group"]))


def _elsewhere(sample: Sample) -> dict[str, Any]:
    return {"elsewhere": list(sample.elsewhere)} if sample.elsewhere else {}


def outcome(
    journal: Notes,
    *,
    measured: int,
    resumed: int,
    left: int,
    seconds: float,
    machine: Machine | None,
) -> Outcome:
    """The end of a run, with what its journal says of disturbed groups and bad candidates."""
    flags = {line["group"]: bool(line.get("flag")) for line in journal.of("group")}
    bad = {(c["group"], c["candidate"]) for c in journal.of("coarse") if c.get("bad")}
    return Outcome(measured, resumed, left, sum(flags.values()), len(bad), seconds, machine)


def in_order(groups: Sequence[Group]) -> list[Group]:
    """Those with the largest share of their step first; what plans use before alternatives."""
    return sorted(groups, key=lambda g: (-g.weight, g.id))
