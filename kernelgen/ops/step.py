"""Owns what references see of a step: positions, requests, sampling fields and dense caches."""

from __future__ import annotations

from collections.abc import Iterator
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
class DenseRows:
    """One row a token of every request of the step, without pages: what `LatentWrite` and
    `LatentAttention` mean."""

    rows: list[Any]
    """one tensor `[tokens, width]` for each request row"""

    def copy(self) -> DenseRows:
        """References never write into what they were given."""
        return DenseRows([r.clone() for r in self.rows])


@dataclass
class DenseState:
    """What a scan carries from step to step, one tensor for each request row."""

    values: list[Any]

    def copy(self) -> DenseState:
        """References never write into what they were given."""
        return DenseState([v.clone() for v in self.values])


Kept = DenseCache | DenseRows | DenseState
"""what a layer keeps between steps"""


@dataclass(frozen=True)
class Run:
    """The tokens of one request in a step: rows `tokens`, the first one at `position`."""

    request: int
    tokens: slice
    position: int

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.tokens.stop) - int(self.tokens.start)


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


def request_runs(step: StepView) -> Iterator[Run]:
    """The runs of token rows that belong to one request each; padding is passed over."""
    owners, positions = step.request.tolist(), step.positions.tolist()
    start = 0
    for stop in range(1, len(owners) + 1):
        if stop < len(owners) and owners[stop] == owners[start]:
            continue
        if owners[start] >= 0:
            yield Run(owners[start], slice(start, stop), positions[start])
        start = stop
