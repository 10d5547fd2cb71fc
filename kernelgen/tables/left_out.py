"""Owns how far interpolation can be trusted: every row left out and found again from the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from kernelgen.tables.lookup import between_us, near, of_one_kind
from kernelgen.tables.row import Row


@dataclass(frozen=True)
class LeftOut:
    """Errors of a family's interpolated times as shares of the measured ones: 0.05 is 5%.

    `rows` counts those with a near size of the same tile measured on both sides: only there is
    interpolated.
    """

    rows: int
    mean: float
    worst: float
    where: str
    """the row that is off most, as bucket and variant"""


def left_out(rows: Iterable[Row]) -> Mapping[str, LeftOut]:
    """By family, what a look-up would say of each row if it were not there, against its time.

    Rows are taken as they stand: whether their code is today's does not matter here.
    """
    places: dict[tuple[str, str, str, str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda r: r.order):
        place = (row.sm, row.device, row.family, row.variant, row.key.bucket.phase)
        places.setdefault(place, []).append(row)
    errors: dict[str, list[tuple[float, Row]]] = {}
    for (*_, family, _, _), ordered in places.items():
        for (low, row), (_, high) in pairwise(pairwise(ordered)):
            size = row.key.bucket.size
            if near(low.key.bucket.size, size, high.key.bucket.size) and of_one_kind(low, high):
                error = abs(between_us(low, high, size) / row.us - 1)
                errors.setdefault(family, []).append((error, row))
    return {family: _summary(found) for family, found in sorted(errors.items())}


def _summary(errors: list[tuple[float, Row]]) -> LeftOut:
    worst, row = max(errors, key=lambda pair: pair[0])
    mean = sum(error for error, _ in errors) / len(errors)
    return LeftOut(len(errors), round(mean, 4), round(worst, 4), f"{row.bucket} {row.variant}")
