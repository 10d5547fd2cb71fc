"""Owns the records of what was checked: one comparison each, and the report over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Check:
    """One comparison over some cases. `error` and `bound` are those of the worst place.

    Where no number can say it (a crash, bits that differ, bytes written outside), `error` counts
    the faults and `bound` is 0. Both are always finite.
    """

    subject: str
    """the kernel, or the recorded case"""
    what: str
    """`values`, `memory`, `threads`, `alone`, `poison`, `ends`; `logits`, `ids`, `chunk 7`, …"""
    cases: int
    error: float
    bound: float
    passed: bool
    detail: str = ""

    @property
    def name(self) -> str:
        """The row's name in a verdict table."""
        return f"{self.subject}: {self.what}"

    @property
    def verdict(self) -> str:
        """`ok` or `miss`."""
        return "ok" if self.passed else "miss"


@dataclass(frozen=True)
class Report:
    """Everything that one `verify` has found."""

    model: str
    target: str
    dtype: str
    fusion: bool
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    """what was not checked, and why"""

    @property
    def passed(self) -> bool:
        """Whether something was checked and nothing missed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def summary(self) -> str:
        """One line for people, notes after it."""
        missed = sum(not check.passed for check in self.checks)
        cases = sum(check.cases for check in self.checks)
        verdict = f"{missed} missed" if missed else "all within bounds"
        head = f"{len(self.checks)} checks over {cases} cases of {self.model} ({self.dtype})"
        return "\n".join([f"{head}: {verdict}", *self.notes])


@dataclass(frozen=True)
class Progress:
    """One finished step of a long check."""

    done: int
    total: int
    label: str


Callback = Callable[[Progress], None]


def faults(subject: str, what: str, cases: int, count: int, detail: str = "") -> Check:
    """A check that counts faults: none are allowed. `detail` says what they are."""
    return Check(subject, what, cases, float(count), 0.0, count == 0, detail if count else "")


def worst(checks: Sequence[Check]) -> Check:
    """Checks of one subject and kind as one: the worst place, all cases, misses first."""

    def badness(check: Check) -> tuple[bool, float]:
        return not check.passed, check.error / check.bound if check.bound else check.error

    found = max(checks, key=badness)
    return replace(found, cases=sum(check.cases for check in checks))
