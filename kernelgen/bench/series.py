"""Owns repeated measurements of one figure: their median and how far they lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """One figure, measured several times; at least once."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float], scale: float = 1.0) -> Series:
        """The values times `scale`, in six digits."""
        return cls(tuple(float(f"{value * scale:.6g}") for value in values))

    @property
    def median(self) -> float:
        """The figure that is reported."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.values)

    @property
    def text(self) -> str:
        """ "890.1 (887.3–893.0)"; the median alone where there is one value."""
        digits = 0 if self.median >= 10_000 else 1 if self.median >= 10 else 2
        shown = f"{self.median:.{digits}f}"
        if len(self.values) == 1:
            return shown
        return f"{shown} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie; `values` holds at least one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
