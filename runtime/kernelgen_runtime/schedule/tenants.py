"""Owns the running requests: the slot and the pages of each, and what they may still take."""

from bisect import insort

import numpy as np

from ..artifact.manifest import PAGE_TOKENS
from ..memory.cache import CacheTables
from ..memory.groups import peak_pages
from ..memory.prefix import Hit
from .limits import Limits
from .request import Request, Status
from .slots import Counts, SlotCounts
from .waiting import Rank

PAGES_WORTH_WAITING = 4


class Tenants:
    """Requests in slots, in order of rank: the last one is the first to be preempted.

    `slots` are theirs in the same order, int64; `counts` say how far each is.
    """

    def __init__(self, limits: Limits, cache: CacheTables) -> None:
        self.running: list[Request] = []
        self.counts = SlotCounts(limits.max_num_seqs)
        self.slots: Counts = np.zeros(0, np.int64)
        self.free_slots = list(range(limits.max_num_seqs - 1, -1, -1))
        self._ranks: list[Rank] = []
        self._cache = cache
        # One page more for each group: a neighbour that grows must not evict a newcomer.
        self._spare = sum(not group.per_request for group in cache.groups)
        self._in_flight = limits.in_flight_tokens
        self._limits = limits

    def enter(self, request: Request, rank: Rank, hit: Hit) -> None:
        """Give a slot to `request`, which goes on from `hit`."""
        request.slot = self.free_slots.pop()
        request.status = Status.RUNNING
        insort(self._ranks, rank)
        self.running.insert(self._ranks.index(rank), request)
        self._cache.open(request.slot, request.chain, hit)
        self.counts.enter(request.slot, request, hit.tokens, self.most_of(request))
        self._note_slots()

    def most_of(self, request: Request) -> int:
        """Return how many tokens of `request` one step may compute."""
        limits = self._limits
        return limits.most_of_told if request.needs_all_rows else limits.most_of_one

    def leave(self, request: Request, last_step: int | None, forget: bool) -> None:
        """Take slot and pages from `request`; see `CacheTables.free`."""
        place = self.running.index(request)
        del self.running[place], self._ranks[place]
        self._cache.free(request.slot, last_step, forget)
        request.draining += self.counts.leave(request.slot)
        self.free_slots.append(request.slot)
        request.slot = -1
        self._note_slots()

    def promised_pages(self) -> int:
        """Return the pages that the running requests will need beside those they have."""
        peaks = self._cache.peak_pages(self.counts.known[self.slots], self._in_flight)
        missing = peaks + self._spare - self._cache.held_pages(self.slots)
        return int(np.maximum(0, missing).sum())

    def pages_to_enter(self, request: Request, hit: Hit) -> int:
        """Return the free pages that all that is known of `request` will take, going on from `hit`.

        The first step only would not do: requests would be let in that preempt each other at once.
        """
        peak = peak_pages(self._cache.groups, len(request.tokens), self._in_flight)
        return self._cache.cost(hit, peak)

    def will_soon_have(self, request: Request, hit: Hit) -> bool:
        """Whether a running request computes right now what comes behind `hit` in `request` too.

        To wait for it costs a step or two; to compute it again, the steps of every request that
        begins alike: all choices of a prompt, all requests with one introduction.
        """
        if request.chain is None or request.needs_all_rows:
            return False
        page = hit.tokens // PAGE_TOKENS + PAGES_WORTH_WAITING - 1
        wanted = request.chain.digest(page)
        soon = self.counts.scheduled + self._limits.most_of_one
        return wanted is not None and any(
            other.chain is not None
            and other.chain.digest(page) == wanted
            and self._cache.findable_pages(other.slot) <= page
            and (page + 1) * PAGE_TOKENS <= soon[other.slot]
            for other in self.running
        )

    def _note_slots(self) -> None:
        self.slots = np.array([request.slot for request in self.running], np.int64)
