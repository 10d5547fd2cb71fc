"""Owns block tables: which page holds each 16 tokens of a slot; grown, released, fenced, found."""

from collections import deque
from collections.abc import Sequence
from itertools import chain as concatenated

import numpy as np
import numpy.typing as npt

from ..artifact.manifest import PAGE_TOKENS, CacheGroup
from .chain import Chain
from .groups import first_live_page, pages_of, window_pages
from .pool import NULL_PAGE, PagePool
from .prefix import Hit, PrefixCounts, find_prefix
from .retention import Retention
from .states import MOST_OF_A_STEP

Counts = npt.NDArray[np.int64]


class CacheTables:
    """Block tables of every slot, int32 [groups, slots, max_pages], and the pool behind them.

    Rows are indexed by slot, never moved or compacted; a step copies the rows it needs. Pages that
    are full and settled can be found by later requests whose `Chain` has the same digest, unless
    `retention` (None: no page is ever found) lets them go.

    A group of states has pages of its own pool, and only where steps end and at page boundaries
    that one may go on from: entry p is the state after the last computed token of page p.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        slots: int,
        max_pages: int,
        pool: PagePool,
        retention: Retention | None = None,
        states: PagePool | None = None,
    ) -> None:
        self.groups = tuple(groups)
        self.pool = pool
        self.states = states
        self.tables = np.full((len(self.groups), slots, max_pages), NULL_PAGE, np.int32)
        self.capacity: Counts = np.zeros(slots, np.int64)
        """tokens that each slot has pages for, those left behind by a window included"""
        self.prefix_counts = PrefixCounts(alone=[0] * len(self.groups))
        self.fenced_pages = 0
        self._retention = retention
        self._windows = [(g, of, of.window) for g, of in enumerate(groups) if of.window is not None]
        self._of_tokens = [g for g, of in enumerate(groups) if not of.per_request]
        self._of_states = [g for g, of in enumerate(groups) if of.per_request]
        assert len(self._of_states) == (states is not None), "one pool for one group of states"
        self._pools = [states if of.per_request and states else pool for of in groups]
        self._unmarked: list[set[int]] = [set() for _ in range(slots)]
        """entries of states that were left inside their page: none of them is at its end"""
        self._released: Counts = np.zeros((len(self.groups), slots), np.int64)
        self._findable = [0] * slots  # pages that were entered as content
        self._due: Counts = np.zeros(slots, np.int64)
        """settled tokens at which a slot has pages to enter or to release again"""
        self._chains: list[Chain | None] = [None] * slots
        self._fence: deque[tuple[int, list[tuple[PagePool, list[int]]]]] = deque()

    def chain(self, tokens: Sequence[int], salt: str | None) -> Chain | None:
        """Return what a request's pages are found by; None where none ever is."""
        return None if self._retention is None else Chain(tokens, salt)

    def find(self, chain: Chain | None, tokens: int) -> Hit:
        """Return what is known of the first `tokens` tokens of a chain; the last one never is."""
        most = max(0, tokens - 1) // PAGE_TOKENS if chain is not None else 0
        digests = chain.digests(most) if chain is not None else []
        return find_prefix([p.content for p in self._pools], self.groups, digests, most)

    def open(self, slot: int, chain: Chain | None, hit: Hit) -> None:
        """Give an empty slot to a request that goes on from `hit`, just found."""
        stop = hit.tokens // PAGE_TOKENS
        for g, pages in enumerate(hit.pages):
            for page in pages:
                self._pools[g].share(page)
            self.tables[g, slot, stop - len(pages) : stop] = pages
            self._released[g, slot] = stop - len(pages)
        self.capacity[slot] = hit.tokens
        self._findable[slot] = stop
        self._due[slot] = 0
        self._chains[slot] = chain

    def cost(self, hit: Hit, peak: int) -> int:
        """Return the free pages that a request takes if it holds `peak` pages at most."""
        known = [page for g in self._of_tokens for page in hit.pages[g]]
        return max(0, peak - len(known)) + sum(self.pool.is_free(page) for page in known)

    def has_states(self) -> bool:
        """Whether a newcomer's first step will find its states."""
        return self.states is None or self.states.free_pages > MOST_OF_A_STEP

    def grow(self, slot: int, tokens: int, start: int = 0) -> bool:
        """Give `slot` pages for positions below `tokens` in every group; all of them or none.

        Those from `start` on are what the next step computes.
        """
        first, stop = self.capacity.item(slot) // PAGE_TOKENS, pages_of(tokens)
        if stop <= first:
            return True
        pages = self.pool.take((stop - first) * len(self._of_tokens))
        if pages is None:
            return False
        if self.states is not None and not self._grow_states(self.states, slot, start, stop - 1):
            self.pool.give_back(pages)
            return False
        count = stop - first
        for i, g in enumerate(self._of_tokens):
            if count == 1:  # the usual case costs a fifth without a slice
                self.tables[g, slot, first] = pages[i]
            else:
                self.tables[g, slot, first:stop] = pages[i * count : (i + 1) * count]
        self.capacity[slot] = stop * PAGE_TOKENS
        return True

    def _grow_states(self, states: PagePool, slot: int, start: int, last: int) -> bool:
        """Give a slot the states of a step that begins at `start` and ends in page `last`.

        One more is kept at the boundary before that page, if the step passes it: there others may
        go on, and the request itself should it come again.
        """
        table = self.tables[self._of_states[0]]
        marks = self._retention is not None and PAGE_TOKENS * last > start
        wanted = [last - 1, last] if marks and table[slot, last - 1] == NULL_PAGE else [last]
        pages = states.take(len(wanted))
        if pages is None:
            return False
        table[slot, wanted] = pages
        if start % PAGE_TOKENS and start // PAGE_TOKENS < last - marks:
            self._unmarked[slot].add(start // PAGE_TOKENS)
        return True

    def settle(self, slots: Counts, settled: Counts) -> None:
        """Note that the first `settled` tokens of each slot are computed.

        Pages that became full can be found from now on, and window pages that no token at or after
        `settled` can read are released.
        """
        due = settled >= self._due[slots]
        for slot, count in zip(slots[due].tolist(), settled[due].tolist(), strict=True):
            self._settle(slot, count)

    def _settle(self, slot: int, settled: int) -> None:
        """Enter and release pages of `slot`; note when the next one is full or left behind."""
        full = settled // PAGE_TOKENS
        if self._retention is not None and full > self._findable[slot]:
            self._enter(slot, full, self._retention)
        due = PAGE_TOKENS * (full + 1)
        for g, group, window in self._windows:
            live = first_live_page(group, settled)
            if live > self._released.item(g, slot):
                self._release(g, slot, live)
            due = min(due, PAGE_TOKENS * (live + 1) + window - 1)
        self._due[slot] = due

    def free(self, slot: int, last_step: int | None, forget: bool = False) -> None:
        """Take every page from `slot`.

        The last ones will be used again first, so that prefixes live longest; `forget`: nothing
        that was computed in this slot may be found any more. Where step `last_step` is still in
        flight and may touch them, they return to the pool only after `lift_fence(last_step)`.
        """
        stop = int(self.capacity[slot]) // PAGE_TOKENS
        held = [(self.pool, self._held(slot, self._of_tokens, stop))]
        if self.states is not None:
            held.append((self.states, self._held(slot, self._of_states, stop)))
        chain, findable = self._chains[slot], self._findable[slot]
        if forget and chain is not None:
            for digest in chain.digests(findable)[:findable]:
                for g, pool in enumerate(self._pools):
                    pool.content.doubt(g, digest)
        for pool, pages in held:
            for page in pages:
                pool.content.want(page)
        self.tables[:, slot, :stop] = NULL_PAGE
        self._released[:, slot] = self.capacity[slot] = 0
        self._findable[slot] = 0
        self._chains[slot] = None
        self._unmarked[slot].clear()
        if last_step is None:
            _give_back(held)
        elif count := sum(len(pages) for _, pages in held):
            self._fence.append((last_step, held))
            self.fenced_pages += count

    def _held(self, slot: int, groups: Sequence[int], stop: int) -> list[int]:
        """Return a slot's pages of some groups, the last ones first."""
        held = (self.tables[g, slot, :stop][::-1].tolist() for g in groups)
        return [page for page in concatenated(*zip(*held, strict=True)) if page != NULL_PAGE]

    def lift_fence(self, step: int) -> None:
        """Note that all steps up to `step` are done; pages waiting for them are free again."""
        while self._fence and self._fence[0][0] <= step:
            held = self._fence.popleft()[1]
            self.fenced_pages -= sum(len(pages) for _, pages in held)
            _give_back(held)

    def forget(self) -> None:
        """Note that nothing that was computed may be found any more."""
        for pool in (self.pool, self.states):
            if pool is not None:
                pool.content.clear()

    def findable_pages(self, slot: int) -> int:
        """Return how many pages of `slot`, from its first, are full and settled."""
        return self._findable[slot]

    def held_pages(self, slots: Counts) -> Counts:
        """Return the pages of tokens that each slot holds now."""
        held: Counts = len(self._of_tokens) * (self.capacity[slots] // PAGE_TOKENS)
        for g in self._of_tokens:
            held = held - self._released[g, slots]
        return held

    def peak_pages(self, tokens: Counts, in_flight: int) -> Counts:
        """Return the most pages that requests of `tokens` tokens hold; see `groups.peak_pages`."""
        pages = -(-tokens // PAGE_TOKENS)
        windows = [group for _, group, _ in self._windows if not group.per_request]
        total: Counts = (len(self._of_tokens) - len(windows)) * pages
        for group in windows:
            total = total + np.minimum(pages, window_pages(group, in_flight))
        return total

    def _enter(self, slot: int, stop: int, retention: Retention) -> None:
        """Let the full pages of `slot` below `stop` be found."""
        chain, first = self._chains[slot], self._findable[slot]
        self._findable[slot] = stop
        if chain is None:
            return
        digests = chain.digests(stop)
        for g, pages in enumerate(self.tables[:, slot, first:stop].tolist()):
            group = self.groups[g]
            unmarked = self._unmarked[slot] if group.per_request else ()
            for i, page in enumerate(pages, first):
                if page != NULL_PAGE and i not in unmarked:
                    wanted = retention.keeps(group, i, chain.replayed)
                    self._pools[g].content.add(g, digests[i], page, wanted)

    def _release(self, g: int, slot: int, live: int) -> None:
        """Take the pages of group `g` below number `live` from a slot."""
        first = self._released.item(g, slot)
        pages = self.tables[g, slot, first:live].tolist()
        self._pools[g].give_back([page for page in pages if page != NULL_PAGE])
        self.tables[g, slot, first:live] = NULL_PAGE
        self._released[g, slot] = live


def _give_back(held: Sequence[tuple[PagePool, list[int]]]) -> None:
    for pool, pages in held:
        pool.give_back(pages)
