"""Owns one step: which tokens of which request it computes, and whose next id is asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .request import Request
from .slots import Counts, SlotCounts


@dataclass(frozen=True)
class Row:
    """Tokens [start, start + count) of `request`; `samples`: the id after them is asked."""

    request: Request
    slot: int
    start: int
    count: int
    samples: bool


@dataclass(frozen=True, eq=False)
class Step:
    """A step as it was decided: arrays with one entry a row, the shortest rows first.

    Row i computes tokens [starts[i], starts[i] + counts[i]) of requests[i]; where `samples[i]`, the
    id after them is asked. `tenancies` are those of the slots when it was scheduled. `token_ids`
    (int32, row after row) has -1 for an id that is still in flight. `entered` are requests that
    have got their slot in this step.
    """

    number: int
    requests: Sequence[Request]
    slots: Counts
    tenancies: Counts
    starts: Counts
    counts: Counts
    samples: npt.NDArray[np.bool_]
    token_ids: npt.NDArray[np.int32]
    entered: Sequence[Request]

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return len(self.token_ids)

    @cached_property
    def ends(self) -> Counts:
        """Tokens of each request once its row is computed."""
        return self.starts + self.counts

    @property
    def is_decode(self) -> bool:
        """Whether every row computes exactly one token."""
        return self.tokens == len(self.requests)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows one by one, for whoever is in no hurry."""
        columns = (a.tolist() for a in (self.slots, self.starts, self.counts, self.samples))
        return tuple(Row(*row) for row in zip(self.requests, *columns, strict=True))


def compose(
    number: int,
    counts: SlotCounts,
    requests: Sequence[Request],
    slots: Counts,
    shares: Counts,
    entered: Sequence[Request],
) -> Step:
    """Return step `number`, in which each of `requests` computes its share, and count that.

    Requests without a share are left out, the shortest shares come first.
    """
    tokens = int(shares.sum())
    if not tokens == len(shares) == np.count_nonzero(shares):  # else each computes one token
        order = np.argsort(shares, kind="stable")[np.count_nonzero(shares == 0) :]
        slots, shares = slots[order], shares[order]
        requests = [requests[i] for i in order.tolist()]
    starts = counts.scheduled[slots]
    counts.scheduled[slots] = ends = starts + shares
    samples = ends == counts.known[slots]
    counts.known[slots] += samples
    ids = _token_ids(counts, requests, slots, starts, shares, tokens)
    tenancies = counts.tenancy[slots]
    return Step(number, requests, slots, tenancies, starts, shares, samples, ids, entered)


def _token_ids(
    counts: SlotCounts,
    requests: Sequence[Request],
    slots: Counts,
    starts: Counts,
    shares: Counts,
    tokens: int,
) -> npt.NDArray[np.int32]:
    """Return the `tokens` ids of all rows; at most the newest of a request is still in flight."""
    ids = np.full(tokens, -1, np.int32)
    is_decode = tokens == len(requests)
    single = tokens if is_decode else int(shares.searchsorted(1, side="right"))
    behind = counts.arrived[slots[:single]] - starts[:single]
    ids[:single] = np.where(behind == 1, counts.newest[slots[:single]], -1)
    rest = (*(behind > 1).nonzero()[0].tolist(), *range(single, len(requests)))
    ends = shares.cumsum() if rest else shares
    for i in rest:
        known = requests[i].tokens[starts[i] : starts[i] + shares[i]]
        first = ends[i] - shares[i]
        ids[first : first + len(known)] = known
    return ids
