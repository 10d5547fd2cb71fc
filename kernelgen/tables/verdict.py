"""Owns the verdicts of a look-up, and the answer that carries one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kernelgen.tables.row import Row


class Verdict(StrEnum):
    """How an answer came about, best first."""

    EXACT = "exact"
    """measured: this variant, this size, this device, this code"""
    INTERPOLATED = "interpolated"
    """between two sizes measured on this device, which have the same tile"""
    INHERITED = "inherited"
    """from a sibling device, where a file beside the table declares that this is allowed"""
    MODELLED = "modelled"
    """computed by the cost model; or, with a choice, between two sizes that have different tiles"""
    STALE = "stale"
    """measured, but the kernel's code has changed since: computed by the cost model"""
    REFUSED = "refused"
    """no measurement, and one was required"""


TUNED = frozenset({Verdict.EXACT, Verdict.INTERPOLATED, Verdict.INHERITED})
"""verdicts that rest on a measurement"""


@dataclass(frozen=True)
class LookUp:
    """The answer to one key; `us` and `choice` mean something for a verdict in `TUNED`, and for a
    modelled one that has a choice.
    """

    verdict: Verdict
    reason: str
    """in words, for `explain`"""
    us: float = 0.0
    """time of one link of a chain on the device that was measured"""
    choice: Mapping[str, int] = field(default_factory=dict)
    row: Row | None = None
    """the row that `choice` is from; of a stale answer the row that is not used"""
    device: str = ""
    """device that was measured: another one than asked for where the answer is inherited"""
