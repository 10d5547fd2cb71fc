"""Owns the fit of the cost model to measured rows: what makes modelled times comparable to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kernelgen.core.errors import UsageError
from kernelgen.tables.least_squares import Parts, Scales, solve

# A model that is 10 to 70% optimistic would make every kernel that nobody has measured win against
# a measured one. So the parts of a modelled time (memory, latency, preparing rows, …) get scales,
# and the whole an addition, from the rows of the device: by least squares of logarithms, because an
# error of 10% counts the same on 3 µs and on 300. Each family has its own, held near those of all
# families together, and those near 1: two rows do not make a slope.
BOUNDARY = "boundary"
"""the part that was measured on its own and is not scaled"""
FOLDS = 10
"""into how many parts rows are dealt, of which each is predicted by a fit of the others"""


@dataclass(frozen=True)
class Sample:
    """One variant at one size: what the model says of its own best tile, and the row's time."""

    family: str
    variant: str
    bucket: str
    parts: Parts
    measured_us: float

    @property
    def modelled_us(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Scatter:
    """Errors of predicted against measured times: 0.1 is a factor of 1.1, either way."""

    median: float
    p90: float

    @staticmethod
    def of(pairs: Iterable[tuple[float, float]]) -> Scatter:
        """Of (predicted, measured) pairs; zeros for none."""
        errors = sorted(math.exp(abs(math.log(p / m))) - 1 for p, m in pairs)
        return Scatter(_quantile(errors, 0.5), _quantile(errors, 0.9))


@dataclass(frozen=True)
class Correction:
    """What turns the parts of a modelled time into one that rows can be compared with."""

    scales: Mapping[str, float]
    add_us: float
    rows: int
    """rows of the family behind it; 0 where only other families have any"""
    before: Scatter
    """of the model alone"""
    after: Scatter
    """with the correction, each row predicted by a fit that has not seen it"""

    def __post_init__(self) -> None:
        if self.rows < 0 or not math.isfinite(self.add_us):
            raise UsageError(f"add_us {self.add_us}, rows {self.rows}", allowed="finite, ≥ 0")
        for part, scale in self.scales.items():
            if not 0.05 <= scale <= 20:
                raise UsageError(f"scale {scale} of {part}", allowed="0.05 to 20")

    def apply(self, parts: Parts) -> float:
        """The corrected time of a modelled one."""
        return Scales(self.scales, self.add_us).apply(parts)

    def told(self, parts: Parts, total: int) -> str:
        """For `explain`: `model × 1.18, fitted on 34 rows, error 9%`."""
        factor = self.apply(parts) / sum(parts.values())
        rows = f"{self.rows} rows" if self.rows else f"{total} rows of other families"
        return f"model × {factor:.2f}, fitted on {rows}, error {self.after.median:.0%}"


@dataclass(frozen=True)
class DeviceFit:
    """Corrections of one device: content of `<sm>/<device>/FIT.json`."""

    schema: Literal[1]
    tables: str
    """digest of the rows below that folder when it was made"""
    whole: Correction
    """all families together: for those without rows"""
    families: Mapping[str, Correction]

    def of(self, family: str) -> Correction:
        """A family's own correction, else that of all."""
        return self.families.get(family) or replace(self.whole, rows=0)

    def told(self, family: str, parts: Parts) -> str:
        """The correction of a modelled time in words."""
        return self.of(family).told(parts, self.whole.rows)


def fit(samples: Iterable[Sample], tables: str = "") -> DeviceFit:
    """Corrections for the families of `samples`; the same samples in any order give the same."""
    ordered = sorted(samples, key=lambda s: (s.family, s.variant, s.bucket, s.measured_us))
    whole, start = _correction(ordered, Scales({}))
    names = dict.fromkeys(s.family for s in ordered)
    families = {
        name: _correction([s for s in ordered if s.family == name], start)[0] for name in names
    }
    return DeviceFit(1, tables, whole, families)


def _correction(samples: Sequence[Sample], near: Scales) -> tuple[Correction, Scales]:
    pairs = [(s.parts, s.measured_us) for s in samples]
    scales = solve(pairs, near, BOUNDARY)
    folds = min(FOLDS, len(pairs))
    unseen: list[tuple[float, float]] = []
    for fold in range(folds):
        seen = [pair for i, pair in enumerate(pairs) if i % folds != fold]
        part = solve(seen, near, BOUNDARY)
        unseen += [(part.apply(parts), us) for parts, us in pairs[fold::folds]]
    found = Correction(
        scales={name: round(scale, 4) for name, scale in scales.parts.items()},
        add_us=round(scales.add_us, 3),
        rows=len(pairs),
        before=_short(Scatter.of((sum(parts.values()), us) for parts, us in pairs)),
        after=_short(Scatter.of(unseen)),
    )
    return found, scales


def _quantile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def _short(scatter: Scatter) -> Scatter:
    return Scatter(round(scatter.median, 4), round(scatter.p90, 4))
