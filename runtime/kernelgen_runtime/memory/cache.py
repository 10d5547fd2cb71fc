"""Owns block tables: which page holds each 16 tokens of a slot; grown, released, fenced."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..artifact.manifest import CacheGroup
from .groups import first_live_page, pages_of, peak_pages
from .pool import NULL_PAGE, PagePool


class CacheTables:
    """Block tables of every slot, int32 [slots, max_pages] a group, and the pool behind them.

    Rows are indexed by slot, never moved or compacted; a step copies the rows it needs.
    """

    def __init__(
        self, groups: Sequence[CacheGroup], slots: int, max_pages: int, pool: PagePool
    ) -> None:
        self.groups = tuple(groups)
        self.pool = pool
        self.tables: tuple[npt.NDArray[np.int32], ...] = tuple(
            np.full((slots, max_pages), NULL_PAGE, np.int32) for _ in groups
        )
        self._tokens = [0] * slots
        self._released = [[0] * slots for _ in groups]
        self._fence: deque[tuple[int, list[int]]] = deque()
        self.fenced_pages = 0

    def grow(self, slot: int, tokens: int) -> bool:
        """Give `slot` pages for positions below `tokens` in every group; all of them or none."""
        first, stop = pages_of(self._tokens[slot]), pages_of(tokens)
        pages = self.pool.take(max(0, stop - first) * len(self.groups))
        if pages is None:
            return False
        if pages:
            shares = np.split(np.array(pages, np.int32), len(self.groups))
            for table, share in zip(self.tables, shares, strict=True):
                table[slot, first:stop] = share
        self._tokens[slot] = max(tokens, self._tokens[slot])
        return True

    def settle(self, slot: int, settled: int) -> None:
        """Release window pages that no token at or after position `settled` can read."""
        for table, released, group in zip(self.tables, self._released, self.groups, strict=True):
            stop = min(first_live_page(group, settled), pages_of(self._tokens[slot]))
            if stop > released[slot]:
                self.pool.give_back(table[slot, released[slot] : stop].tolist())
                table[slot, released[slot] : stop] = NULL_PAGE
                released[slot] = stop

    def free(self, slot: int, last_step: int | None) -> None:
        """Take every page from `slot`, the last first.

        Where step `last_step` is still in flight and may touch them, they return to the pool only
        after `lift_fence(last_step)`.
        """
        pages: list[int] = []
        for table, released in zip(self.tables, self._released, strict=True):
            stop = pages_of(self._tokens[slot])
            pages += table[slot, released[slot] : stop][::-1].tolist()
            table[slot, :stop] = NULL_PAGE
            released[slot] = 0
        self._tokens[slot] = 0
        if last_step is None:
            self.pool.give_back(pages)
        elif pages:
            self._fence.append((last_step, pages))
            self.fenced_pages += len(pages)

    def lift_fence(self, step: int) -> None:
        """Note that all steps up to `step` are done; pages waiting for them are free again."""
        while self._fence and self._fence[0][0] <= step:
            pages = self._fence.popleft()[1]
            self.fenced_pages -= len(pages)
            self.pool.give_back(pages)

    def held_pages(self, slot: int) -> int:
        """Return the pages `slot` holds now."""
        pages = pages_of(self._tokens[slot])
        return sum(pages - released[slot] for released in self._released)

    def peak_pages(self, tokens: int, in_flight: int) -> int:
        """Return the most pages a request of `tokens` tokens holds; see `groups.peak_pages`."""
        return peak_pages(self.groups, tokens, in_flight)
