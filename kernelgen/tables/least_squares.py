"""Owns the least squares behind a fit: scales of the parts of a time, in logarithms, held near."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Parts = Mapping[str, float]
"""part of a modelled time → µs"""

SCALE_SPREAD = 0.25
"""by how much (in the logarithm) a part's scale differs from what it is held near, as a rule"""
ADD_SPREAD_US = 0.5
ROW_SPREAD = 0.1
"""scatter of single rows around a fit, as a rule"""
LEAST_SHARE = 0.2
"""of the modelled time that is left at least, whatever is taken off"""
_ROUNDS = 40


@dataclass(frozen=True)
class Scales:
    """predicted = sum of part × scale, plus an addition; a part without a scale counts once."""

    parts: Mapping[str, float]
    add_us: float = 0.0

    def of(self, part: str) -> float:
        """The scale of a part."""
        return self.parts.get(part, 1.0)

    def apply(self, parts: Parts) -> float:
        """The predicted time, never below a fifth of the sum of the parts."""
        total = sum(us * self.of(part) for part, us in parts.items()) + self.add_us
        return max(total, LEAST_SHARE * sum(parts.values()))


def solve(pairs: Sequence[tuple[Parts, float]], near: Scales, fixed: str) -> Scales:
    """The scales that minimise the squares of log(predicted / measured) and of the distance from
    `near`, by damped Gauss-Newton steps. The part called `fixed` keeps its scale.
    """
    names = sorted({part for parts, _ in pairs for part in parts} - {fixed})
    start = [math.log(near.of(name)) for name in names] + [near.add_us]
    spot, cost = start, _cost(pairs, names, start, start)
    for _ in range(_ROUNDS):
        step = _step(pairs, names, spot, start)
        size, new, there = 1.0, cost, spot
        while size > 1e-4 and not new < cost:
            there = [a + size * b for a, b in zip(spot, step, strict=True)]
            new = _cost(pairs, names, there, start)
            size /= 2
        if not new < cost - 1e-10:
            break
        spot, cost = there, new
    return _scales(names, spot)


def _scales(names: Sequence[str], spot: Sequence[float]) -> Scales:
    return Scales(
        {name: math.exp(value) for name, value in zip(names, spot[:-1], strict=True)}, spot[-1]
    )


def _held(count: int) -> list[float]:
    """Weights of the distances from the start: of each scale, then of the addition."""
    return [SCALE_SPREAD**-2] * count + [ADD_SPREAD_US**-2]


def _cost(
    pairs: Sequence[tuple[Parts, float]],
    names: Sequence[str],
    spot: Sequence[float],
    start: Sequence[float],
) -> float:
    scales = _scales(names, spot)
    errors = (math.log(scales.apply(parts) / us) / ROW_SPREAD for parts, us in pairs)
    moved = zip(_held(len(names)), spot, start, strict=True)
    return sum(e * e for e in errors) + sum(w * (a - b) ** 2 for w, a, b in moved)


def _step(
    pairs: Sequence[tuple[Parts, float]],
    names: Sequence[str],
    spot: Sequence[float],
    start: Sequence[float],
) -> list[float]:
    """The step to the minimum of the linearised cost."""
    scales, size = _scales(names, spot), len(spot)
    held = _held(len(names))
    matrix = [[held[i] if i == j else 0.0 for j in range(size)] for i in range(size)]
    right = [-w * (a - b) for w, a, b in zip(held, spot, start, strict=True)]
    for parts, us in pairs:
        predicted = scales.apply(parts)
        error = math.log(predicted / us)
        slopes = [parts.get(n, 0.0) * scales.of(n) / predicted for n in names] + [1 / predicted]
        used = [i for i, slope in enumerate(slopes) if slope]
        for i in used:
            right[i] -= slopes[i] * error / ROW_SPREAD**2
            for j in used:
                matrix[i][j] += slopes[i] * slopes[j] / ROW_SPREAD**2
    return _eliminate(matrix, right)


def _eliminate(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss without pivoting: the matrix is symmetric, and its diagonal is held above zero."""
    size = len(right)
    for i in range(size):
        for j in range(i + 1, size):
            factor = matrix[j][i] / matrix[i][i]
            if factor:
                right[j] -= factor * right[i]
                matrix[j] = [a - factor * b for a, b in zip(matrix[j], matrix[i], strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(matrix[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (right[i] - rest) / matrix[i][i]
    return found
