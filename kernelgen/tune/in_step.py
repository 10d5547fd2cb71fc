"""Owns trying tiles inside the whole step: of those that are near by themselves the best one there.

A tile that is fastest in a chain of its own is not always the one that shortens the step: what the
kernels before and after it leave in caches, and how their blocks meet, is different there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernelgen.core.decode import from_json
from kernelgen.tables import Row
from kernelgen.tune.bundle import Bundle, Candidate, Group, StepFacts
from kernelgen.tune.crew import Crew, Lost
from kernelgen.tune.findings import is_quiet, latest
from kernelgen.tune.journal import Notes
from kernelgen.tune.measurer import Pair
from kernelgen.tune.rows import WHOLE_STEP, quantile, row_json, row_of

NEAR = 1.3
"""times the fastest right candidate by itself: what is slower is not tried in the step. Clusters
gained 20% in chains of their own and lost 8% in steps, where they wait for places side by side."""
MOST = 8
"""candidates of a kernel that are tried, besides the one in use"""
LEAST_GAIN = 0.0004
"""of the step that a tile has to save, twice, to replace another: samples spread by so much"""
_OFF = 0.2
"""share of the logits' size by which two steps may differ: roundings of all layers. Candidates have
been checked by themselves; this is for what goes wrong only among others."""
_SAMPLES = 15


@dataclass
class InStep:
    """Decides for the kernels of one step, one after the other, each beside what was decided."""

    crew: Crew
    journal: Notes
    bundle: Bundle
    step: StepFacts
    over: Callable[[], bool]
    date: str
    tell: Callable[[Group, str, float, float], None] = lambda group, note, us, before: None
    chosen: dict[str, str] = field(default_factory=dict)
    """group → candidate"""

    def run(self) -> int:
        """How many kernels were decided in this run; what the journal holds is not tried again."""
        known = self._known()
        self.chosen = {g: c for g in self._groups() if (c := self._in_use(self.bundle.group[g]))}
        done = 0
        for name in self.step.tried:
            if name not in self.chosen:
                continue
            if name in known:
                self.chosen[name] = known[name]
                continue
            if self.over():
                break
            done += self._decide(self.bundle.group[name])
        return done

    def left(self) -> int:
        """Kernels that are still to be decided."""
        known = self._known()
        return sum(name not in known for name in self.step.tried)

    def _groups(self) -> Iterator[str]:
        return iter(dict.fromkeys(use.group for use in self.step.uses))

    def _known(self) -> dict[str, str]:
        """Decisions of earlier runs on the code that is here."""
        here = {g: self.bundle.group[g] for g in self.step.tried}
        return {
            line["group"]: line["candidate"]
            for line in self.journal.of("decided", step=self.step.id)
            if not line["flag"]
            and line["group"] in here
            and line["code"] == here[line["group"]].code
            and line["candidate"] in [c.id for c in here[line["group"]].candidates]
        }

    @staticmethod
    def _in_use(group: Group) -> str:
        mine = (c.id for c in group.candidates if dict(c.choice) == dict(group.before))
        return next(mine, "")

    def _decide(self, group: Group) -> int:
        """Tries the near candidates one by one; 0 where the device was not quiet meanwhile."""
        machine = self.crew.settle()
        ceiling = machine.canary.gb_s
        first = self.crew.canary()
        start = self.chosen[group.id]
        tried: dict[str, list[float]] = {}
        for candidate in self._near(group):
            if candidate.id == start:
                continue
            gains = self._gains(group, candidate)
            tried[candidate.id] = [round(g, 5) for g in gains]
            if len(gains) > 1 and min(gains) >= LEAST_GAIN:
                self.chosen[group.id] = candidate.id
        last = self.crew.canary()
        quiet = is_quiet(first, ceiling) and is_quiet(last, ceiling)
        flag = "" if quiet else f"copies at {first.gb_s:.0f}, {last.gb_s:.0f} of {ceiling:.0f} GB/s"
        if flag:
            self.chosen[group.id] = start
        self.journal.add(
            "decided", durable=True, step=self.step.id, group=group.id, code=group.code,
            candidate=self.chosen[group.id], before=start, gains=tried, flag=flag,
        )  # fmt: skip
        if not flag:
            self._ship(group, tried)
        return int(quiet)

    def _near(self, group: Group) -> list[Candidate]:
        """Right candidates whose time by themselves is near the best one's: the fastest of each
        way to take places on the device, then the others.
        """
        us = {c.id: t for c in group.candidates if (t := self._alone(group, c)) is not None}
        best = min(us.values(), default=0.0)
        near = [c for c in group.candidates if us.get(c.id, best * NEAR + 1) <= best * NEAR]
        near.sort(key=lambda c: us[c.id])
        ways = {_places(c): c for c in reversed(near)}
        return sorted(near, key=lambda c: (ways[_places(c)] is not c, us[c.id]))[: MOST + 1]

    def _alone(self, group: Group, candidate: Candidate) -> float | None:
        """What the sweep has measured of it; None where it was wrong or was not measured."""
        coarse = latest(self.journal.about("coarse", group.id, candidate.id))
        if coarse is None or coarse["bad"] or not coarse["us"]:
            return None
        line = latest(self.journal.about("fine", group.id, candidate.id)) or coarse
        line = line if line["us"] else coarse
        us = quantile(sorted(line["us"]), 0.5)
        return group.rank_us(us, line.get("elsewhere", ()))

    def _gains(self, group: Group, candidate: Candidate) -> Sequence[float]:
        """What share of the step it saves: once, and once more where that is enough to count."""
        found: list[float] = []
        base, trial = dict(self.chosen), {**self.chosen, group.id: candidate.id}
        for _ in range(2):
            try:
                pair = self.crew.whole(self.step.id, base, trial, _SAMPLES)
            except Lost as error:
                self.journal.add(
                    "coarse", group=group.id, candidate=candidate.id, attempt=0, us=[], share=None,
                    bad=f"inside the step: {error}", code=candidate.source,
                )  # fmt: skip
                self.crew.settle()
                return ()
            if pair.off > _OFF:
                self.tell(group, f"{candidate.id}: other logits in the step", 0.0, 0.0)
                return ()
            found.append(_gain(pair))
            self.tell(group, candidate.id, _middle(pair.trial), _middle(pair.base))
            if found[-1] < LEAST_GAIN:
                break
        return found

    def _ship(self, group: Group, tried: Mapping[str, Sequence[float]]) -> None:
        """The group's line once more, with the row of the tile that the step has chosen."""
        lines = [line for line in self.journal.of("group", group=group.id) if line.get("about")]
        if not lines or lines[-1].get("row") is None:
            return
        line: dict[str, Any] = {k: v for k, v in lines[-1].items() if k != "kind"}
        candidate = next(c for c in group.candidates if c.id == self.chosen[group.id])
        row = self._row(group, candidate, line)
        if row is not None:
            whole = {"step": self.step.id, "gains": dict(tried)}
            self.journal.add("group", durable=True, **{**line, "row": row, "whole": whole})

    def _row(self, group: Group, candidate: Candidate, line: Mapping[str, Any]) -> Any:
        """A row as a sweep makes it, of the tile's own chain; its sweep's name says what chose."""
        made = from_json(Row, line["row"], source=group.id)
        if dict(made.choice) != dict(candidate.choice):
            try:
                sample = self.crew.fine(group.id, candidate.id, 9)
            except Lost:
                return None
            coarse = latest(self.journal.about("coarse", group.id, candidate.id))
            share = float(coarse["share"]) if coarse else 0.0
            machine = self.crew.settle()
            made = row_of(
                self.bundle, group, candidate, sample.us, share, machine, (machine.canary,),
                self.date,
            )  # fmt: skip
        name = made.provenance.removesuffix(WHOLE_STEP) + WHOLE_STEP
        return row_json(replace(made, provenance=name))


def _places(candidate: Candidate) -> tuple[tuple[int, int], ...]:
    """Threads of a block and blocks of a cluster, launch by launch."""
    return tuple((launch.threads, launch.cluster) for launch in candidate.launches)


def _gain(pair: Pair) -> float:
    return 1 - _middle(pair.trial) / _middle(pair.base)


def _middle(samples: Sequence[float]) -> float:
    return quantile(sorted(samples), 0.5)
