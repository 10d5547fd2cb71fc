"""Owns repeated measurements: their median, their spread, and when there are enough of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

ROUNDS = 7
"""fewest rounds before a series can count as steady"""
STEADY = 0.05
"""middle half of a steady series, as a share of its median"""


@dataclass
class Series:
    """One figure, once a round."""

    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        """One more round."""
        self.values.append(value)

    @property
    def median(self) -> float:
        """The figure that is reported."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Where the middle half of the rounds lies."""
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def spread(self) -> float:
        """Width of the middle half as a share of the median."""
        low, high = self.quartiles
        return (high - low) / self.median

    @property
    def steady(self) -> bool:
        """Whether more rounds would hardly move the median."""
        return len(self.values) >= ROUNDS and self.spread <= STEADY

    def over(self, other: Series) -> Series:
        """Ratios round by round: what slowed the machine in a round slowed both."""
        return Series([a / b for a, b in zip(self.values, other.values, strict=True)])

    def text(self, digits: int = 1) -> str:
        """Median with its quartiles."""
        low, high = self.quartiles
        return f"{self.median:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"
