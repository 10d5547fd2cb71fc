"""Owns rotary embeddings as data: base, scaling, and the frequencies that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LinearScaling:
    """Every frequency divided by one factor."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Long wavelengths divided by `factor`, short ones kept, a smooth step between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True)
class YarnScaling:
    """Interpolation below a frequency band, none above it; cos and sin scaled by `attention`."""

    factor: float
    original_positions: int
    beta_fast: float
    beta_slow: float
    attention: float
    """factor of cos and sin"""
    truncate: bool
    """the band's ends are rounded to whole dimensions"""


@dataclass(frozen=True)
class RopeSpec:
    """Half-split rotation of the first `dim` elements of a head; dim is even, theta above 1."""

    dim: int
    theta: float
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None = None

    @property
    def scale(self) -> float:
        """Factor of cos and sin."""
        return self.scaling.attention if isinstance(self.scaling, YarnScaling) else 1.0

    def inv_freq(self) -> tuple[float, ...]:
        """Radians for each position of the dim/2 pairs, computed in float64."""
        plain = tuple(self.theta ** (-2.0 * i / self.dim) for i in range(self.dim // 2))
        scaling = self.scaling
        if isinstance(scaling, LinearScaling):
            return tuple(f / scaling.factor for f in plain)
        if isinstance(scaling, Llama3Scaling):
            return tuple(_llama3(f, scaling) for f in plain)
        if isinstance(scaling, YarnScaling):
            return _yarn(plain, self.dim, self.theta, scaling)
        return plain


def _llama3(frequency: float, s: Llama3Scaling) -> float:
    turns = s.original_positions * frequency / (2 * math.pi)  # over the original context
    if turns < s.low_freq_factor:
        return frequency / s.factor
    if turns > s.high_freq_factor:
        return frequency
    smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    return (1 - smooth) * frequency / s.factor + smooth * frequency


def _yarn(plain: tuple[float, ...], dim: int, theta: float, s: YarnScaling) -> tuple[float, ...]:
    def dim_of(turns: float) -> float:
        """Dimension that makes `turns` rotations over the original context."""
        return dim * math.log(s.original_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dim_of(s.beta_fast), dim_of(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    out = []
    for i, frequency in enumerate(plain):
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        out.append(frequency / s.factor * ramp + frequency * (1 - ramp))
    return tuple(out)
