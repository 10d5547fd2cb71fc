"""Owns the token-budget rule: every request catches up with its own length, in order of rank."""

import time
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ..errors import RequestError
from ..memory.cache import CacheTables
from ..memory.groups import peak_pages
from ..memory.prefix import Hit
from .limits import Limits
from .request import NO_CHOICE, Request, Status
from .slots import Counts
from .step import Step, compose
from .tenants import Tenants
from .waiting import WaitingQueue


class Scheduler:
    """Waiting and running requests, and the two halves of a step: `schedule` and `settle`.

    Steps may be scheduled before earlier ones are settled (they settle in order). Everything
    that frees memory looks at settled counts and waits for the newest step in flight.
    """

    def __init__(self, limits: Limits, cache: CacheTables) -> None:
        self.limits = limits
        self.cache = cache
        self.waiting = WaitingQueue(limits.policy)
        self.preemptions = 0
        self._tenants = Tenants(limits, cache)
        self._refused: tuple[Request | None, int] = (None, 0)  # with the pages it would have taken
        self._arrivals = 0
        self._launched = 0
        self._settled = 0

    @property
    def running(self) -> list[Request]:
        """Requests that have a slot, in order of rank."""
        return self._tenants.running

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished or any step unsettled."""
        return bool(self.waiting or self.running or self._launched != self._settled)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError where the cache could never hold it."""
        groups, pages = self.cache.groups, self.cache.pool.pages - 1
        computed = max(1, request.length_limit - 1)  # nothing is asked after the last token
        most = peak_pages(groups, computed, self.limits.in_flight_tokens)
        if most > pages:
            raise RequestError(
                f"a request of up to {request.length_limit} tokens needs {most} pages, "
                f"the cache has {pages}; lower max_tokens"
            )
        self._arrivals += 1
        request.arrival = self._arrivals
        request.chain = self.cache.chain(request.tokens, request.cache_salt)
        self.waiting.push(request)

    def schedule(self) -> Step | None:
        """Return the next step, or None where nothing can be computed now."""
        preempted = self.preemptions
        tenants, budget = self._tenants, self.limits.max_num_batched_tokens
        shares = self._make_room(self._share(tenants.counts.todo(tenants.slots), budget))
        requests, slots = list(tenants.running), tenants.slots
        entered: list[Request] = []
        if self.waiting and tenants.free_slots and self.preemptions == preempted:
            entered, first_shares = self._admit(budget - int(shares.sum()))
            requests += entered
            entered_slots = [request.slot for request in entered]
            slots = np.concatenate([slots, np.array(entered_slots, np.int64)])
            shares = np.concatenate([shares, np.array(first_shares, np.int64)])
        if not np.count_nonzero(shares):
            return None
        self._launched += 1
        return compose(self._launched, tenants.counts, requests, slots, shares, entered)

    def settle(self, step: Step, sampled: npt.ArrayLike) -> list[Request]:
        """Apply the result of the oldest step in flight: one id a row, -1 where none was asked.

        Returns the requests that gained a token or ended; one whose logits are NaN ends with an
        error, others go on.
        """
        self._end(step)
        counts, ids = self._tenants.counts, np.asarray(sampled, np.int64)
        live = counts.tenancy[step.slots] == step.tenancies
        self.cache.settle(step.slots[live], step.ends[live])
        took = live & step.samples
        asked = step.slots[took]
        counts.arrived[asked] += 1
        counts.newest[asked] = ids[took]
        rows = zip(step.requests, ids.tolist(), step.samples.tolist(), live.tolist(), strict=True)
        return self._deliver(rows)

    def fail(self, step: Step) -> None:
        """End every request of the oldest step in flight, which gave no result; others go on."""
        self._end(step)
        counts = self._tenants.counts
        live = counts.tenancy[step.slots] == step.tenancies
        counts.known[step.slots[live & step.samples]] -= 1
        for request, alive, asked in zip(step.requests, live, step.samples, strict=True):
            request.draining -= bool(asked and not alive)
            self.finish(request, "error")

    def finish(self, request: Request, reason: str) -> None:
        """End a request wherever it is; a step in flight that holds it is ignored later."""
        if request.status is Status.FINISHED:
            return
        if request.status is Status.RUNNING:
            # What an erroneous request has computed may be wrong: nobody else shall go on from it.
            self._leave(request, forget=reason == "error")
            request.status = Status.FINISHED
        else:
            request.status = Status.FINISHED
            if request.arrival:  # else it was never added
                self.waiting.finished()
        request.finish_reason = reason
        request.timings.finished = time.perf_counter()

    def _share(self, todo: Counts, budget: int) -> Counts:
        """Return what each row gets: all it can use, as far as those before it left some."""
        if int(todo.sum()) <= budget:  # the usual case
            return todo
        before = todo.cumsum() - todo
        shares: Counts = np.minimum(todo, np.maximum(0, budget - before))
        return shares

    def _make_room(self, shares: Counts) -> Counts:
        """Give pages to the running requests; return the shares of those that still run.

        Preempted ones are the last, so those that are left keep their places. Behind one that has
        to wait for pages nobody takes any.
        """
        tenants, must_wait = self._tenants, False
        stops = tenants.counts.scheduled[tenants.slots] + shares
        growing = stops > self.cache.capacity[tenants.slots]
        for i in growing.nonzero()[0].tolist():
            if i >= len(tenants.running):
                break
            if must_wait or not self._grow(tenants.running[i], int(stops[i])):
                shares[i], must_wait = 0, True
        return shares[: len(tenants.running)]

    def _grow(self, request: Request, tokens: int) -> bool:
        """Give pages to `request`, preempting from the tail; False where it must wait."""
        start = int(self._tenants.counts.scheduled[request.slot])
        while not self.cache.grow(request.slot, tokens, start):
            if self.cache.fenced_pages:
                return False  # pages are on their way back: evicting more would gain nothing
            victim = self._tenants.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self._leave(request)
        request.status = Status.PREEMPTED
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.push(request)

    def _leave(self, request: Request, forget: bool = False) -> None:
        in_flight = self._launched if self._launched != self._settled else None
        self._tenants.leave(request, in_flight, forget)

    def _admit(self, budget: int) -> tuple[list[Request], list[int]]:
        """Let waiting requests in, one after the other; return them and their first shares."""
        entered: list[Request] = []
        shares: list[int] = []
        tenants, cache = self._tenants, self.cache
        while budget and tenants.free_slots and (request := self.waiting.first()) is not None:
            room = cache.pool.free_pages - tenants.promised_pages()
            least = self._refused[1] if request is self._refused[0] else 1
            if request.draining or least > room:
                break  # its old timeline is in flight, or there is no need to look
            hit = cache.find(None if request.needs_all_rows else request.chain, len(request.tokens))
            if (needed := tenants.pages_to_enter(request, hit)) > room:
                self._refused = (request, needed)
                break
            if tenants.will_soon_have(request, hit) or not cache.has_states():
                break
            self.waiting.pop()
            self._note_first(request, hit)
            tenants.enter(request, self.waiting.rank(request), hit)
            share = min(len(request.tokens) - hit.tokens, budget, tenants.most_of(request))
            grown = cache.grow(request.slot, hit.tokens + share, hit.tokens)
            assert grown, "there is room for more than the first share"
            entered.append(request)
            shares.append(share)
            budget -= share
        return entered, shares

    def _note_first(self, request: Request, hit: Hit) -> None:
        if request.status is not Status.WAITING:
            return
        request.timings.scheduled = time.perf_counter()
        request.cached_tokens = hit.tokens
        if request.chain is not None and not request.needs_all_rows:
            self.cache.prefix_counts.count(request.prompt_tokens, hit)

    def _deliver(self, rows: Iterable[tuple[Request, int, bool, bool]]) -> list[Request]:
        """Give each request the id that it has asked; return those that had not ended before."""
        gained = []
        for request, token, asks, is_live in rows:
            if not asks:
                continue
            if not is_live:
                # An id of an older timeline is as good as any: it was computed from the same
                # tokens.
                request.draining -= 1
                if request.status is Status.FINISHED:
                    continue
            gained.append(request)
            if token == NO_CHOICE:
                request.error = (
                    f"logits are NaN after {len(request.tokens)} tokens (are the weights damaged?)"
                )
                self.finish(request, "error")
            elif (reason := request.append(token)) is not None:
                self.finish(request, reason)
        return gained

    def _end(self, step: Step) -> None:
        assert step.number == self._settled + 1, "steps settle in order"
        self._settled = step.number
        self.cache.lift_fence(step.number)
