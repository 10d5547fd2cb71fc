"""Owns a measurer without a device: times that follow from the candidate alone, faults to order."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelgen.core.decode import from_json
from kernelgen.core.digest import digest_bytes
from kernelgen.tune.bundle import Candidate, Group, StepFacts
from kernelgen.tune.bundle_file import BundleFile
from kernelgen.tune.measurer import Canary, Machine, Pair, Sample


@dataclass
class FakeMeasurer:
    """Deterministic; lists hold ids of candidates, each as `<group id>/<candidate id>`."""

    crash: tuple[str, ...] = ()
    hang: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    refuse: tuple[str, ...] = ()
    """group ids that cannot be set up"""
    busy: str = ""
    """a file: while it exists somebody else uses the device"""
    room: int = 1 << 30
    """the longest context that there is memory for"""
    delay_s: float = 0.0
    """of each measurement"""
    crash_whole: tuple[str, ...] = ()
    """those that take the process along inside a step"""
    wrong_whole: tuple[str, ...] = ()
    """those whose step has other logits"""
    log: str = ""
    """a file that gets one line for each measurement"""
    calls: int = field(default=0, compare=False)

    @staticmethod
    def parse(text: str) -> FakeMeasurer:
        """From a JSON object."""
        data = json.loads(text or "{}")
        return from_json(FakeMeasurer, data, source="a fake measurer")

    def use(self, file: BundleFile) -> None:
        """Nothing of it is run."""

    def settle(self) -> Machine:
        """A device of its own name."""
        return Machine("Fake GPU", "1.0", "0", Canary(4000.0, 1980, 3201))

    def canary(self) -> Canary:
        """Slow while it is busy."""
        busy = bool(self.busy) and Path(self.busy).exists()
        return Canary(2500.0 if busy else 4000.0, 1980, 3201)

    def open(self, group: Group) -> None:
        """Nothing to set up."""
        if group.id in self.refuse:
            raise MemoryError(f"no room for {group.id}")

    def coarse(self, group: Group, candidate: Candidate) -> Sample:
        """One sample, or the fault that was ordered."""
        place = f"{group.id}/{candidate.id}"
        self._note(f"coarse {place}")
        if place in self.crash:
            os.abort()
        if place in self.hang:
            time.sleep(3600)
        share = 12.5 if place in self.wrong else 0.5
        return Sample(
            (self._us(place, candidate, 0),), share, elsewhere=self._others(group, candidate)
        )

    def fine(self, group: Group, candidate: Candidate, samples: int) -> Sample:
        """So many samples around the same time."""
        place = f"{group.id}/{candidate.id}"
        self._note(f"fine {place}")
        times = tuple(self._us(place, candidate, i) for i in range(samples))
        return Sample(times, 0.0, elsewhere=self._others(group, candidate))

    def whole(
        self, step: StepFacts, base: Mapping[str, str], trial: Mapping[str, str], samples: int
    ) -> Pair:
        """Launches add up; inside a step a candidate is up to 10 % slower than by itself."""
        self._note(f"whole {step.id} {json.dumps(dict(trial), sort_keys=True)}")
        for group, candidate in trial.items():
            if f"{group}/{candidate}" in self.crash_whole:
                os.abort()
        sums = [
            sum(count * self.inside_us(group, choices) for group, count in step.times.items())
            for choices in (base, trial)
        ]
        base_us, trial_us = (
            tuple(round(us * (1 + 0.0001 * (i % 3)), 4) for i in range(samples)) for us in sums
        )
        wrong = any(f"{g}/{c}" in self.wrong_whole for g, c in trial.items())
        return Pair(base_us, trial_us, 2.0 if wrong else 0.01)

    def inside_us(self, group: str, choices: Mapping[str, str]) -> float:
        """One launch of a group in a step; 10 where nothing is chosen."""
        if group not in choices:
            return 10.0
        place = f"{group}/{choices[group]}"
        return 9.0 + 2.0 * int(digest_bytes(f"whole {place}")[:8], 16) / 2**32

    def _others(self, group: Group, candidate: Candidate) -> tuple[float | None, ...]:
        """In proportion to what is read; nothing beyond `room`."""
        place, planned = f"{group.id}/{candidate.id}", group.extents.context
        return tuple(
            round(self._us(f"{place} {c}", candidate, 0) * c / planned, 4)
            if c <= self.room
            else None
            for c in group.elsewhere
        )

    def _us(self, place: str, candidate: Candidate, number: int) -> float:
        """The model's time, 30 % around it by the candidate, 1 % by the sample."""
        own = int(digest_bytes(place)[:8], 16) / 2**32
        noise = int(digest_bytes(f"{place} {number}")[:8], 16) / 2**32
        return round(candidate.modelled_us * (0.7 + 0.6 * own) * (1 + 0.01 * noise), 4)

    def _note(self, text: str) -> None:
        time.sleep(self.delay_s)
        if self.log:
            with Path(self.log).open("a") as file:
                file.write(text + "\n")
