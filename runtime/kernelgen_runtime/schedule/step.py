"""Owns the description of one step: which tokens of which request, and whose next id is asked."""

from dataclasses import dataclass

from .request import Request


@dataclass(frozen=True)
class Row:
    """Tokens [start, start + count) of `request`, as decided when the step was scheduled."""

    request: Request
    slot: int
    epoch: int
    start: int
    count: int
    samples: bool

    @property
    def is_stale(self) -> bool:
        """Whether the request was preempted after this row was scheduled."""
        return self.epoch != self.request.epoch


@dataclass(frozen=True)
class Step:
    """The rows of one step, shortest first, so that decode rows stand together."""

    number: int
    rows: tuple[Row, ...]
    tokens: int

    @property
    def is_decode(self) -> bool:
        """Whether every row computes exactly one token."""
        return self.tokens == len(self.rows)
