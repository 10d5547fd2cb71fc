"""Owns the token-budget rule: every request catches up with its own length, in order of rank."""

import time
from bisect import insort

import numpy as np
import numpy.typing as npt

from ..errors import RequestError
from ..memory.cache import CacheTables
from ..memory.groups import peak_pages
from ..memory.prefix import Hit
from .limits import Limits
from .request import NO_CHOICE, Request, Status
from .slots import Counts, SlotCounts
from .step import Step, compose
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
        self.running: list[Request] = []
        self.preemptions = 0
        self._counts = SlotCounts(limits.max_num_seqs)
        self._free_slots = list(range(limits.max_num_seqs - 1, -1, -1))
        self._slots: Counts = np.zeros(0, np.int64)  # those of `running`
        self._refused: tuple[Request | None, int] = (None, 0)  # with the pages it would have taken
        self._arrivals = 0
        self._launched = 0
        self._settled = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished or any step unsettled."""
        return bool(self.waiting or self.running or self._launched != self._settled)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError where the cache could never hold it."""
        groups, pages = self.cache.groups, self.cache.pool.pages - 1
        most = peak_pages(groups, request.length_limit, self.limits.in_flight_tokens)
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
        counts = self._share(self._counts.todo(self._slots), self.limits.max_num_batched_tokens)
        counts = self._make_room(counts)
        requests, slots = list(self.running), self._slots
        entered: list[Request] = []
        if self.waiting and self._free_slots and self.preemptions == preempted:
            entered, shares = self._admit(self.limits.max_num_batched_tokens - int(counts.sum()))
            requests += entered
            entered_slots = [request.slot for request in entered]
            slots = np.concatenate([slots, np.array(entered_slots, np.int64)])
            counts = np.concatenate([counts, np.array(shares, np.int64)])
        if not counts.any():
            return None
        self._launched += 1
        return compose(self._launched, self._counts, requests, slots, counts, entered)

    def settle(self, step: Step, sampled: npt.ArrayLike) -> list[Request]:
        """Apply the result of the oldest step in flight: one id a row, -1 where none was asked.

        Returns the requests that gained a token or ended; one whose logits are NaN ends with an
        error, others go on.
        """
        self._end(step)
        counts, ids = self._counts, np.asarray(sampled, np.int64)
        live = counts.tenancy[step.slots] == step.tenancies
        slots, ends = step.slots[live], (step.starts + step.counts)[live]
        self.cache.settle(slots, ends)
        asked = step.slots[live & step.samples]
        counts.arrived[asked] += 1
        counts.newest[asked] = ids[live & step.samples]
        rows = zip(step.requests, ids.tolist(), step.samples.tolist(), live.tolist(), strict=True)
        return self._deliver([(request, id, alive) for request, id, asks, alive in rows if asks])

    def fail(self, step: Step) -> None:
        """End every request of the oldest step in flight, which gave no result; others go on."""
        self._end(step)
        live = self._counts.tenancy[step.slots] == step.tenancies
        self._counts.known[step.slots[live & step.samples]] -= 1
        for request, alive, asked in zip(step.requests, live, step.samples, strict=True):
            request.draining -= bool(asked and not alive)
            self.finish(request, "error")

    def finish(self, request: Request, reason: str) -> None:
        """End a request wherever it is; a step in flight that holds it is ignored later."""
        if request.status is Status.FINISHED:
            return
        if request.status is Status.RUNNING:
            # What an erroneous request has computed may be wrong: nobody else shall go on from it.
            self._vacate(request, forget=reason == "error")
            request.status = Status.FINISHED
        else:
            request.status = Status.FINISHED
            if request.arrival:  # else it was never added
                self.waiting.finished()
        request.finish_reason = reason
        request.timings.finished = time.perf_counter()

    def _share(self, todo: Counts, budget: int) -> Counts:
        """Return what each row gets: all it can use, as far as those before it left some."""
        todo = np.minimum(todo, self.limits.most_of_one)
        before = np.cumsum(todo) - todo
        shares: Counts = np.minimum(todo, np.maximum(0, budget - before))
        return shares

    def _make_room(self, counts: Counts) -> Counts:
        """Give pages to the running requests; return the counts of those that still run.

        Preempted ones are the last, so those that are left keep their places.
        """
        slots, running = self._slots, self.running
        stops = self._counts.scheduled[slots] + counts
        for i in (stops > self.cache.capacity[slots]).nonzero()[0].tolist():
            if i < len(running) and not self._grow(running[i], int(stops[i])):
                counts[i] = 0
        return counts[: len(running)]

    def _grow(self, request: Request, tokens: int) -> bool:
        """Give pages to `request`, preempting from the tail; False where it must wait."""
        while not self.cache.grow(request.slot, tokens):
            if self.cache.fenced_pages:
                return False  # pages are on their way back: evicting more would gain nothing
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self._vacate(request)
        request.status = Status.PREEMPTED
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.push(request)

    def _vacate(self, request: Request, forget: bool = False) -> None:
        in_flight = self._launched if self._launched != self._settled else None
        self.running.remove(request)
        self.cache.free(request.slot, in_flight, forget)
        request.draining += self._counts.leave(request.slot)
        self._free_slots.append(request.slot)
        request.slot = -1
        self._note_running()

    def _note_running(self) -> None:
        self._slots = np.array([request.slot for request in self.running], np.int64)

    def _admit(self, budget: int) -> tuple[list[Request], list[int]]:
        """Let waiting requests in, one after the other; return them and their first shares.

        All that is known of a request must fit beside what is promised to others. Asking for the
        first share only would admit requests that preempt each other at once.
        """
        entered: list[Request] = []
        shares: list[int] = []
        cache, in_flight = self.cache, self.limits.in_flight_tokens
        # One page more for each group: a neighbour that grows must not evict the newcomer.
        spare = len(cache.groups)
        peaks = cache.peak_pages(self._counts.known[self._slots], in_flight)
        promised = int(np.maximum(0, peaks + spare - cache.held_pages(self._slots)).sum())
        while budget and self._free_slots and (request := self.waiting.first()) is not None:
            least = self._refused[1] if request is self._refused[0] else spare
            if request.draining or promised + least > cache.pool.free_pages:
                break  # its old timeline is in flight, or there is no need to look
            hit = cache.find(None if request.needs_all_rows else request.chain, len(request.tokens))
            peak = peak_pages(cache.groups, len(request.tokens), in_flight)
            if promised + (cost := cache.cost(hit, peak)) > cache.pool.free_pages:
                self._refused = (request, cost)
                break
            self.waiting.pop()
            shares.append(self._enter(request, hit, budget))
            entered.append(request)
            budget -= shares[-1]
            promised += max(0, peak + spare - int(cache.held_pages(np.array([request.slot]))[0]))
        if entered:
            self._note_running()
        return entered, shares

    def _enter(self, request: Request, hit: Hit, budget: int) -> int:
        """Give a slot to `request`; return its share of the step."""
        if request.status is Status.WAITING:
            request.timings.scheduled = time.perf_counter()
            request.cached_tokens = hit.tokens
            if not request.needs_all_rows:
                self.cache.prefix_counts.count(request.prompt_tokens, hit)
        request.slot = self._free_slots.pop()
        request.status = Status.RUNNING
        insort(self.running, request, key=self.waiting.rank)
        self.cache.open(request.slot, request.chain, hit)
        self._counts.enter(request.slot, request, hit.tokens)
        count = min(len(request.tokens) - hit.tokens, budget, self.limits.most_of_one)
        grown = self.cache.grow(request.slot, hit.tokens + count)
        assert grown, "its cost covers more than the first share"
        return count

    def _deliver(self, ids: list[tuple[Request, int, bool]]) -> list[Request]:
        """Give each request its id; return those that had not ended before."""
        gained = []
        for request, token, is_live in ids:
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
