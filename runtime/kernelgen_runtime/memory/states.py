"""Owns the arithmetic of states: how many pages a request needs of them, which ones a step has."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..artifact.manifest import PAGE_TOKENS, CacheSchema
from .pool import NULL_PAGE

Counts = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

MOST_OF_A_STEP = 2
"""pages that one step gives a request: where it ends, and at the last page boundary before that"""


def held_states(steps_in_flight: int) -> int:
    """Return the most states that one request holds: two that are settled, and those of steps."""
    return 2 + MOST_OF_A_STEP * steps_in_flight


def state_pages(schema: CacheSchema, max_num_seqs: int, steps_in_flight: int) -> int:
    """Return the number of pages of states, the null page included; 0 where there are none.

    Every request that may run has its own, and as many again as requests stay for those that go on
    from a prefix: a request is never refused for want of them.
    """
    if not schema.state_bytes:
        return 0
    return 1 + max_num_seqs * (held_states(steps_in_flight) + 1)


class StateRows(NamedTuple):
    """By row of a step: pages of its states before and after it, one kept on the way, and how many
    tokens the request has there. 0: none."""

    before: Ints
    after: Ints
    mark: Ints
    mark_at: Counts


def state_rows(table: Ints, slots: Counts, starts: Counts, ends: Counts) -> StateRows:
    """Return which pages a step reads and writes, from the table by slot and page of 16 tokens.

    Entry p is the state after the last computed token among 16p … 16p + 15.
    """
    last = (ends - 1) // PAGE_TOKENS
    before = np.where(starts > 0, table[slots, np.maximum(starts - 1, 0) // PAGE_TOKENS], NULL_PAGE)
    inside = (last > 0) & (PAGE_TOKENS * last > starts)
    mark = np.where(inside, table[slots, np.maximum(last - 1, 0)], NULL_PAGE)
    return StateRows(before, table[slots, last], mark, np.where(mark > 0, PAGE_TOKENS * last, 0))
