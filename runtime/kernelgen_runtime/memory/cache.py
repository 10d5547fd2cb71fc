"""Owns block tables: which page holds each 16 tokens of a slot; grown, released, fenced, found."""

from collections import deque
from collections.abc import Sequence
from itertools import chain as concatenated

import numpy as np
import numpy.typing as npt

from ..artifact.manifest import PAGE_TOKENS, CacheGroup
from .chain import Chain
from .groups import pages_of, window_pages
from .pool import NULL_PAGE, PagePool
from .prefix import Hit, PrefixCounts, find_prefix
from .retention import Retention

Counts = npt.NDArray[np.int64]


class CacheTables:
    """Block tables of every slot, int32 [slots, max_pages] a group, and the pool behind them.

    Rows are indexed by slot, never moved or compacted; a step copies the rows it needs. Pages that
    are full and settled can be found by later requests whose `Chain` has the same digest, unless
    `retention` (None: no page is ever found) lets them go.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        slots: int,
        max_pages: int,
        pool: PagePool,
        retention: Retention | None = None,
    ) -> None:
        self.groups = tuple(groups)
        self.pool = pool
        self.tables: tuple[npt.NDArray[np.int32], ...] = tuple(
            np.full((slots, max_pages), NULL_PAGE, np.int32) for _ in groups
        )
        self.capacity: Counts = np.zeros(slots, np.int64)
        """tokens that each slot has pages for, those left behind by a window included"""
        self.prefix_counts = PrefixCounts(alone=[0] * len(self.groups))
        self.fenced_pages = 0
        self._retention = retention
        self._windows = [(g, of, of.window) for g, of in enumerate(groups) if of.window is not None]
        self._released: Counts = np.zeros((len(self.groups), slots), np.int64)
        self._findable: Counts = np.zeros(slots, np.int64)  # pages that were entered as content
        self._chains: list[Chain | None] = [None] * slots
        self._fence: deque[tuple[int, list[int]]] = deque()

    def chain(self, tokens: Sequence[int], salt: str | None) -> Chain | None:
        """Return what a request's pages are found by; None where none ever is."""
        return None if self._retention is None else Chain(tokens, salt)

    def find(self, chain: Chain | None, tokens: int) -> Hit:
        """Return what is known of the first `tokens` tokens of a chain; the last one never is."""
        most = max(0, tokens - 1) // PAGE_TOKENS if chain is not None else 0
        digests = chain.digests(most) if chain is not None else []
        return find_prefix(self.pool.content, self.groups, digests, most)

    def open(self, slot: int, chain: Chain | None, hit: Hit) -> None:
        """Give an empty slot to a request that goes on from `hit`, just found."""
        stop = hit.tokens // PAGE_TOKENS
        for g, pages in enumerate(hit.pages):
            for page in pages:
                self.pool.share(page)
            self.tables[g][slot, stop - len(pages) : stop] = pages
            self._released[g, slot] = stop - len(pages)
        self.capacity[slot] = hit.tokens
        self._findable[slot] = stop
        self._chains[slot] = chain

    def cost(self, hit: Hit, peak: int) -> int:
        """Return the free pages that a request takes if it holds `peak` pages at most."""
        known = [page for pages in hit.pages for page in pages]
        return max(0, peak - len(known)) + sum(self.pool.is_free(page) for page in known)

    def grow(self, slot: int, tokens: int) -> bool:
        """Give `slot` pages for positions below `tokens` in every group; all of them or none."""
        first, stop = int(self.capacity[slot]) // PAGE_TOKENS, pages_of(tokens)
        if stop <= first:
            return True
        pages = self.pool.take((stop - first) * len(self.groups))
        if pages is None:
            return False
        count = stop - first
        for g, table in enumerate(self.tables):
            if count == 1:  # the usual case costs a fifth without a slice
                table[slot, first] = pages[g]
            else:
                table[slot, first:stop] = pages[g * count : (g + 1) * count]
        self.capacity[slot] = stop * PAGE_TOKENS
        return True

    def settle(self, slots: Counts, settled: Counts) -> None:
        """Note that the first `settled` tokens of each slot are computed.

        Pages that became full can be found from now on, and window pages that no token at or after
        `settled` can read are released.
        """
        full = settled // PAGE_TOKENS
        if self._retention is not None:
            for i in (full > self._findable[slots]).nonzero()[0].tolist():
                self._enter(int(slots[i]), int(full[i]), self._retention)
        for g, _, window in self._windows:
            live = np.maximum(0, settled + 1 - window) // PAGE_TOKENS
            for i in (live > self._released[g, slots]).nonzero()[0].tolist():
                self._release(g, int(slots[i]), int(live[i]))

    def free(self, slot: int, last_step: int | None, forget: bool = False) -> None:
        """Take every page from `slot`.

        The last ones will be used again first, so that prefixes live longest; `forget`: nothing
        that was computed in this slot may be found any more. Where step `last_step` is still in
        flight and may touch them, they return to the pool only after `lift_fence(last_step)`.
        """
        stop, content = int(self.capacity[slot]) // PAGE_TOKENS, self.pool.content
        held = (table[slot, :stop][::-1].tolist() for table in self.tables)
        pages = [page for page in concatenated(*zip(*held, strict=True)) if page != NULL_PAGE]
        chain, findable = self._chains[slot], int(self._findable[slot])
        if forget and chain is not None:
            for digest in chain.digests(findable)[:findable]:
                for g in range(len(self.groups)):
                    content.doubt(g, digest)
        for page in pages:
            content.want(page)
        for table in self.tables:
            table[slot, :stop] = NULL_PAGE
        self._released[:, slot] = self.capacity[slot] = self._findable[slot] = 0
        self._chains[slot] = None
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

    def findable_pages(self, slot: int) -> int:
        """Return how many pages of `slot`, from its first, are full and settled."""
        return int(self._findable[slot])

    def held_pages(self, slots: Counts) -> Counts:
        """Return the pages that each slot holds now."""
        held: Counts = len(self.groups) * (self.capacity[slots] // PAGE_TOKENS)
        held = held - self._released[:, slots].sum(0)
        return held

    def peak_pages(self, tokens: Counts, in_flight: int) -> Counts:
        """Return the most pages that requests of `tokens` tokens hold; see `groups.peak_pages`."""
        pages = -(-tokens // PAGE_TOKENS)
        total: Counts = (len(self.groups) - len(self._windows)) * pages
        for _, group, _ in self._windows:
            total = total + np.minimum(pages, window_pages(group, in_flight))
        return total

    def _enter(self, slot: int, stop: int, retention: Retention) -> None:
        """Let the full pages of `slot` below `stop` be found."""
        chain, first = self._chains[slot], int(self._findable[slot])
        self._findable[slot] = stop
        if chain is None:
            return
        digests = chain.digests(stop)
        for g, group in enumerate(self.groups):
            for i, page in enumerate(self.tables[g][slot, first:stop].tolist(), first):
                if page != NULL_PAGE:
                    wanted = retention.keeps(group, i, chain.replayed)
                    self.pool.content.add(g, digests[i], page, wanted)

    def _release(self, g: int, slot: int, live: int) -> None:
        """Take the pages of group `g` below number `live` from a slot."""
        first, stop = (
            int(self._released[g, slot]),
            min(live, int(self.capacity[slot]) // PAGE_TOKENS),
        )
        self.pool.give_back(self.tables[g][slot, first:stop].tolist())
        self.tables[g][slot, first:stop] = NULL_PAGE
        self._released[g, slot] = stop
