"""Owns what references see of a step: positions, requests, sampling fields and dense caches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class DenseCache:
    """Keys and values of every request of the step, without pages: what `CacheWrite` and
    `Attention` mean."""

    keys: list[Any]
    """one tensor `[tokens, kv_heads, head_dim]` for each request row"""
    values: list[Any]

    def copy(self) -> DenseCache:
        """References never write into what they were given."""
        return DenseCache([k.clone() for k in self.keys], [v.clone() for v in self.values])


@dataclass
class StepView:
    """One step as a reference sees it; all tensors are int64."""

    positions: Any
    """`[T]` absolute position of each token row"""
    request: Any
    """`[T]` request row of each token row, −1 for padding"""
    temperature: list[float] = field(default_factory=list)
    """per logit row"""
    top_k: list[int] = field(default_factory=list)
    top_p: list[float] = field(default_factory=list)
    seed: list[int] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    """position of the token that is being chosen"""
    min_p: list[float] = field(default_factory=list)
    """empty: off"""
