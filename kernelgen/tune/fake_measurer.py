"""Owns a measurer without a device: times that follow from the candidate alone, faults to order."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from kernelgen.core.decode import from_json
from kernelgen.core.digest import digest_bytes
from kernelgen.tune.bundle import Candidate, Group
from kernelgen.tune.bundle_file import BundleFile
from kernelgen.tune.measurer import Canary, Machine, Sample


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
