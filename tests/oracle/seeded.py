"""Seeded weights: every tensor has its own generator, so that adding one never moves another."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch

# Spreads chosen so that logits are a few units wide and greedy margins are not lost in rounding.
_NORM_SPREAD, _BIAS_SPREAD, _SINK_SPREAD, _TABLE_SPREAD, _MATRIX_GAIN = 0.2, 0.1, 1.5, 0.25, 2.0
_RATE = (-2.0, 0.5)  # logarithms of decay rates: states that remember some tens of tokens


def seeded_tensor(name: str, shape: tuple[int, ...], seed: int) -> Any:
    """Float32 tensor that depends on its name and the seed alone; spread by what the name says."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    noise = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1.0 + _NORM_SPREAD * noise
    if name.endswith("bias"):
        return _BIAS_SPREAD * noise
    if name.endswith("A_log"):
        return _RATE[0] + _RATE[1] * noise
    if name.endswith("sinks"):
        return 0.5 + _SINK_SPREAD * noise
    if "embed" in name or "head" in name:
        return _TABLE_SPREAD * noise
    return _MATRIX_GAIN * noise / math.sqrt(shape[-1])


def seeded_weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Any]:
    """A tensor for every name."""
    return {name: seeded_tensor(name, shape, seed) for name, shape in shapes.items()}
