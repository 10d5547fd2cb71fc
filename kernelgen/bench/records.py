"""Owns the arithmetic of kernel records: steps, and what each launch takes and adds to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

SKIPPED = 2
"""decode steps at the start of a profile that are left out, where enough others follow"""


@dataclass(frozen=True)
class Record:
    """One run of a kernel on the device; times in nanoseconds of one clock."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class LaunchTime:
    """Medians of one launch of a step, µs.

    Dependent launches overlap: a kernel starts early and waits inside. `duration_us` is from its
    start to its end, `advance_us` from the end of all kernels before it to its own end, 0 where it
    ends before them. Advances of a step sum to its span.
    """

    name: str
    duration_us: float
    advance_us: float


@dataclass(frozen=True)
class StepProfile:
    """Decode steps of one shape. `launches` in order of start.

    `span_us`: first start to last end; `between_us`: from a step's end to the next one's start.
    """

    steps: int
    launches: tuple[LaunchTime, ...]
    span_us: float
    between_us: float


@dataclass(frozen=True)
class PromptKernel:
    """What all runs of a kernel before the first decode step took, µs."""

    name: str
    count: int
    duration_us: float
    advance_us: float


@dataclass(frozen=True)
class Profile:
    """What the records of one run of a case say; `prompt` holds the steps before decoding."""

    decode: StepProfile
    prompt: tuple[PromptKernel, ...]


def profile(records: Sequence[Record]) -> Profile | None:
    """Splits records at the kernel that ends every step; None where no two steps are equal.

    The last record is the end of a decode step. Steps with the same kernels in the same order as
    that one are decode steps; what ran before the first of them belongs to the prompts.
    """
    ordered = sorted(records, key=lambda record: record.start)
    steps = _steps(ordered)
    if not steps:
        return None
    pattern = _names(steps[-1])
    first = next(i for i, step in enumerate(steps) if _names(step) == pattern)
    equal = [step for step in steps if _names(step) == pattern]
    if len(equal) < 2:
        return None
    kept = equal[SKIPPED:] if len(equal) > 2 * SKIPPED else equal
    return Profile(
        decode=StepProfile(
            steps=len(kept),
            launches=_launches(kept),
            span_us=_us(median(_end(step) - step[0].start for step in kept)),
            between_us=_us(median(b[0].start - _end(a) for a, b in pairwise(kept))),
        ),
        prompt=_prompt([record for step in steps[:first] for record in step]),
    )


def advances(records: Sequence[Record]) -> list[int]:
    """Nanoseconds that each record, in order of start, moves the end of the work.

    The first one counts from its own start.
    """
    found, reached = [], records[0].start if records else 0
    for record in records:
        found.append(max(0, record.end - reached))
        reached = max(reached, record.end)
    return found


def _steps(ordered: Sequence[Record]) -> list[list[Record]]:
    steps: list[list[Record]] = []
    current: list[Record] = []
    for record in ordered:
        current.append(record)
        if record.name == ordered[-1].name:
            steps.append(current)
            current = []
    return steps


def _launches(steps: Sequence[Sequence[Record]]) -> tuple[LaunchTime, ...]:
    moved = [advances(step) for step in steps]
    return tuple(
        LaunchTime(
            name=record.name,
            duration_us=_us(median(step[i].end - step[i].start for step in steps)),
            advance_us=_us(median(step[i] for step in moved)),
        )
        for i, record in enumerate(steps[0])
    )


def _prompt(records: Sequence[Record]) -> tuple[PromptKernel, ...]:
    sums: dict[str, list[int]] = {}
    for record, advance in zip(records, advances(records), strict=True):
        total = sums.setdefault(record.name, [0, 0, 0])
        for i, value in enumerate((1, record.end - record.start, advance)):
            total[i] += value
    return tuple(PromptKernel(name, n, _us(d), _us(a)) for name, (n, d, a) in sums.items())


def _names(step: Sequence[Record]) -> tuple[str, ...]:
    return tuple(record.name for record in step)


def _end(step: Sequence[Record]) -> int:
    return max(record.end for record in step)


def _us(nanoseconds: float) -> float:
    return round(nanoseconds / 1e3, 3)
