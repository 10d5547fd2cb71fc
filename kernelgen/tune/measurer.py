"""Owns what a sweep asks of whoever measures: a candidate's time and whether it is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kernelgen.tune.bundle import Candidate, Group, StepFacts
from kernelgen.tune.bundle_file import BundleFile


@dataclass(frozen=True)
class Canary:
    """A copy of known size between two groups, and the clocks at that moment (0: not known)."""

    gb_s: float
    sm_mhz: int = 0
    memory_mhz: int = 0


@dataclass(frozen=True)
class Machine:
    """What is measured on, once its clocks have settled."""

    device: str
    """as the driver spells it"""
    driver: str
    torch: str
    canary: Canary


@dataclass(frozen=True)
class Sample:
    """What was seen of one candidate. `us`: microseconds of one link, each from one replay."""

    us: tuple[float, ...]
    share: float
    """of the error bound: above 1 is wrong"""
    note: str = ""
    elsewhere: tuple[float | None, ...] = ()
    """the median at each of the group's other contexts; None where the device has no room for it"""


@dataclass(frozen=True)
class Pair:
    """A whole step in two ways, measured by turns: microseconds of each replay."""

    base: tuple[float, ...]
    trial: tuple[float, ...]
    off: float = 0.0
    """how far the logits of the two lie apart, as a share of their size: roundings, or a fault"""


class Measurer(Protocol):
    """Measures candidates one after the other; may crash or hang, which ends its process only."""

    def use(self, file: BundleFile) -> None:
        """Groups and machine code come from there from now on."""

    def settle(self) -> Machine:
        """Bring the clocks up and find the ceiling of the canary."""

    def canary(self) -> Canary:
        """How fast the device copies right now."""

    def open(self, group: Group) -> None:
        """Set the group's operands and right answers up, in place of the last one's."""

    def coarse(self, group: Group, candidate: Candidate) -> Sample:
        """Check the numbers and take one short sample."""

    def fine(self, group: Group, candidate: Candidate, samples: int) -> Sample:
        """Take so many samples; the numbers are not checked again."""

    def whole(
        self, step: StepFacts, base: Mapping[str, str], trial: Mapping[str, str], samples: int
    ) -> Pair:
        """Take so many samples of a step with either choice of candidates, by turns."""
