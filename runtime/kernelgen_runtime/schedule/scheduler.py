"""Owns the token-budget rule: each request catches up with its own length, in order of arrival."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..memory.cache import CacheTables
from .request import NO_CHOICE, Request, Status
from .step import Row, Step


@dataclass(frozen=True)
class Limits:
    """What one step and one request may take; `chunk_tokens` caps one request in one step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    chunk_tokens: int | None = None
    steps_in_flight: int = 1

    @property
    def in_flight_tokens(self) -> int:
        """Most tokens of one request computed but not settled."""
        chunk = min(self.chunk_tokens or self.max_num_batched_tokens, self.max_num_batched_tokens)
        return min(chunk * self.steps_in_flight, self.max_model_len)


class Scheduler:
    """Waiting and running requests, and the two halves of a step: `schedule` and `settle`.

    Steps may be scheduled before earlier ones are settled (they settle in order). Everything
    that frees memory looks at settled counts and waits for the newest step in flight.
    """

    def __init__(self, limits: Limits, cache: CacheTables) -> None:
        self.limits = limits
        self.cache = cache
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0
        self._free_slots = list(range(limits.max_num_seqs - 1, -1, -1))
        self._launched = 0
        self._settled = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished or any step unsettled."""
        return bool(self.waiting or self.running or self._launched != self._settled)

    def add(self, request: Request) -> None:
        """Queue a request behind all others."""
        self.waiting.append(request)

    def schedule(self) -> Step | None:
        """Return the next step, or None where nothing can be computed now."""
        rows: list[Row] = []
        budget = self.limits.max_num_batched_tokens
        preempted = self.preemptions
        for request in list(self.running):
            count = self._share(request, budget)
            if count and request.status is Status.RUNNING and self._make_room(request, count):
                rows.append(self._row(request, count))
                budget -= count
        if self.preemptions == preempted:
            self._admit(rows, budget)
        if not rows:
            return None
        self._launched += 1
        rows.sort(key=lambda row: row.count)
        return Step(self._launched, tuple(rows), sum(row.count for row in rows))

    def settle(self, step: Step, sampled: Sequence[int]) -> list[Request]:
        """Apply the result of the oldest step in flight: one id a row, -1 where none was asked.

        Returns the requests that gained a token or ended; one whose logits are NaN ends with an
        error, others go on.
        """
        assert step.number == self._settled + 1, "steps settle in order"
        self._settled = step.number
        self.cache.lift_fence(step.number)
        gained = []
        for row, token in zip(step.rows, sampled, strict=True):
            request = row.request
            if request.status is Status.RUNNING and not row.is_stale:
                request.settled = row.start + row.count
                self.cache.settle(row.slot, request.settled)
            if not row.samples:
                continue
            # An id of an older timeline is as good as any: it was computed from the same tokens.
            request.pending -= 1
            if request.status is Status.FINISHED:
                continue
            gained.append(request)
            if token == NO_CHOICE:
                request.error = (
                    f"logits are NaN after {len(request.tokens)} tokens (are the weights damaged?)"
                )
                self.finish(request, "error")
                continue
            reason = request.append(token)
            if reason is not None:
                self.finish(request, reason)
        return gained

    def fail(self, step: Step) -> None:
        """End every request of the oldest step in flight, which gave no result; others go on."""
        assert step.number == self._settled + 1, "steps settle in order"
        self._settled = step.number
        self.cache.lift_fence(step.number)
        for row in step.rows:
            row.request.pending -= row.samples
            self.finish(row.request, "error")

    def finish(self, request: Request, reason: str) -> None:
        """End a request wherever it is; a step in flight that holds it is ignored later."""
        if request.status is Status.FINISHED:
            return
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self._vacate(request)
        else:
            self.waiting.remove(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        request.timings.finished = time.perf_counter()

    def _share(self, request: Request, budget: int) -> int:
        return min(request.todo, budget, self.limits.chunk_tokens or budget)

    def _row(self, request: Request, count: int) -> Row:
        start, end = request.scheduled, request.scheduled + count
        row = Row(request, request.slot, request.epoch, start, count, end == request.known)
        request.scheduled = end
        request.pending += row.samples
        return row

    def _make_room(self, request: Request, count: int) -> bool:
        """Give pages to `request`, preempting from the tail; False where it must wait."""
        while not self.cache.grow(request.slot, request.scheduled + count):
            if self.cache.fenced_pages:
                return False  # pages are on their way back: evicting more would gain nothing
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._vacate(request)
        request.status = Status.PREEMPTED
        request.epoch += 1
        request.scheduled = request.settled = 0
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _vacate(self, request: Request) -> None:
        in_flight = self._launched if self._launched != self._settled else None
        self.cache.free(request.slot, in_flight)
        self._free_slots.append(request.slot)
        request.slot = -1

    def _admit(self, rows: list[Row], budget: int) -> None:
        while self.waiting and budget and self._free_slots and self._fits(self.waiting[0]):
            request = self.waiting.popleft()
            request.slot = self._free_slots.pop()
            request.status = Status.RUNNING
            if not request.timings.scheduled:
                request.timings.scheduled = time.perf_counter()
            self.running.append(request)
            count = self._share(request, budget)
            grown = self.cache.grow(request.slot, count)
            assert grown, "_fits looked at more than the first chunk"
            rows.append(self._row(request, count))
            budget -= count

    def _fits(self, request: Request) -> bool:
        """Whether all that is known of `request` can be computed beside what is promised already.

        Asking for the first chunk only would admit requests that preempt each other at once.
        """
        if request.pending:
            return False  # its old timeline is still in flight
        promised = self._need(request)
        for other in self.running:
            # One page more for each group: a neighbour that grows must not evict the newcomer.
            need = self._need(other) + len(self.cache.groups)
            promised += max(0, need - self.cache.held_pages(other.slot))
        return promised <= self.cache.pool.free_pages

    def _need(self, request: Request) -> int:
        return self.cache.peak_pages(request.known, self.limits.in_flight_tokens)
