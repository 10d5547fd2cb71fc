"""An engine around a model of a few lines, with every promise of scheduler and cache checked.

The model keeps token ids in the pages it is given. A step runs as late as it may: when its result
is waited for, after later ones were scheduled. So a page that is freed, found or written too early
changes a token or fails at once.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from kernelgen_runtime.artifact.manifest import Manifest, Plan
from kernelgen_runtime.engine import Engine
from kernelgen_runtime.launch.args import ArgsWriter, SlotSampling
from kernelgen_runtime.launch.details import Answer
from kernelgen_runtime.launch.plans import plans_in_use
from kernelgen_runtime.launch.program import Program
from kernelgen_runtime.memory.cache import CacheTables
from kernelgen_runtime.memory.groups import pages_of, peak_pages
from kernelgen_runtime.memory.pool import PagePool
from kernelgen_runtime.memory.retention import Retention
from kernelgen_runtime.sample.params import SamplingParams
from kernelgen_runtime.schedule.limits import Limits, Policy
from kernelgen_runtime.schedule.request import Request, Status
from kernelgen_runtime.schedule.scheduler import Scheduler
from kernelgen_runtime.schedule.step import Step
from runtime_fakes import PAGE, Groups, manifest_json, manifest_of

IDS = 97
LENGTH = 90
PAGES = 16
GREEDY = SamplingParams(temperature=0.0)


def next_id(contexts: Sequence[Sequence[int]]) -> int:
    """The id after what each group's layers see."""
    state = 0
    for context in contexts:
        state = zlib.crc32(np.asarray(context, np.int32).tobytes(), state + 1)
    return state % IDS


def expected(request: Request, groups: Groups) -> list[int]:
    """What a request gives alone, without a cache."""
    tokens = request.tokens[: request.prompt_tokens]
    while len(tokens) < request.length_limit:
        seen = [tokens if window is None else tokens[-window:] for _, window in groups]
        tokens = [*tokens, next_id(seen)]
        if tokens[-1] in request.stop_ids:
            break
    return tokens[request.prompt_tokens :]


class LateRunner:
    """A `Runner` that reads `args` alone; a step in flight runs when it must, or by chance."""

    logit_rows = 8

    def __init__(self, manifest: Manifest, slots: int, pages: int, depth: int, seed: int) -> None:
        words = manifest.args.words
        sampling = SlotSampling(slots)
        self._ring = deque(
            ArgsWriter(manifest.args, sampling, torch.zeros(words, dtype=torch.int32))
            for _ in range(depth + 1)
        )
        self._groups = manifest.cache.groups
        self._cells = np.full((len(self._groups), pages * PAGE, 2), -1)
        self._last = np.full(slots, -1)
        self._queue: deque[tuple[int, dict[str, np.ndarray]]] = deque()
        self._results: dict[int, np.ndarray] = {}
        self._chance, self._number = random.Random(seed), 0
        self.refuse = 0

    def misses_graph(self, plan: Plan) -> bool:
        return False

    def args(self) -> ArgsWriter:
        self._ring.rotate(1)
        return self._ring[0]

    def start(self, plan: Plan, asked: int) -> Callable[[], Any]:
        self._number += 1
        self._queue.append((self._number, self._ring[0].fields))
        if self._chance.random() < 0.2:
            self._run_until(self._number)
        number = self._number
        return lambda: Answer(self._run_until(number))

    def logits(self, count: int) -> Any:
        raise AssertionError("nobody asks")

    def _run_until(self, number: int) -> np.ndarray:
        while self._queue and self._queue[0][0] <= number:
            which, read = self._queue.popleft()
            self._results[which] = self._step(read)
        return self._results[number]

    def _step(self, read: dict[str, np.ndarray]) -> np.ndarray:
        _, rows, asked, _ = read["counts"].tolist()
        ids = []
        for row in range(rows):
            self._write(read, row)
        for row in read["logit_row"][:asked].tolist():
            stop = int(read["row_seq_len"][row])
            seen = [self._seen(read, g, row, stop) for g in range(len(self._groups))]
            ids.append(next_id(seen))
            self._last[read["row_slot"][row]] = ids[-1]
        return np.array(ids, np.int32)

    def _write(self, read: dict[str, np.ndarray], row: int) -> None:
        first, last = read["row_query_start"][row : row + 2].tolist()
        stop = int(read["row_seq_len"][row])
        tokens = read["token_ids"][first:last].copy()
        tokens[tokens == -1] = self._last[read["row_slot"][row]]
        assert (tokens >= 0).all() and (tokens < IDS).all()
        for g, group in enumerate(self._groups):
            at = self._places(read, group.name, row, stop - (last - first), stop)
            self._cells[g, at, 0], self._cells[g, at, 1] = tokens, np.arange(stop - len(at), stop)

    def _seen(self, read: dict[str, np.ndarray], g: int, row: int, stop: int) -> np.ndarray:
        window = self._groups[g].window
        first = 0 if window is None else max(0, stop - window)
        cells = self._cells[g, self._places(read, self._groups[g].name, row, first, stop)]
        assert (cells[:, 1] == np.arange(first, stop)).all(), "a page was taken while it was read"
        return cells[:, 0]

    def _places(
        self, read: dict[str, np.ndarray], name: str, row: int, first: int, stop: int
    ) -> np.ndarray:
        positions = np.arange(first, stop)
        pages = read[f"block_table.{name}"][row][positions // PAGE]
        assert (pages > 0).all(), "every token that is read or written has a page"
        return pages.astype(np.int64) * PAGE + positions % PAGE


@dataclass
class Setup:
    """One engine; `spare` pages more than one request of the longest kind needs."""

    groups: Groups
    seqs: int = 4
    budget: int = 16
    chunk: int | None = None
    depth: int = 1
    spare: int = 4
    policy: Policy = Policy.FCFS
    retention: Retention | None = field(default_factory=Retention)
    seed: int = 0


class Watched:
    """An engine whose every step is checked; `steps` counts them."""

    def __init__(self, setup: Setup) -> None:
        manifest = manifest_of(manifest_json(setup.groups))
        self.groups = setup.groups
        self.limits = limits = Limits(
            setup.seqs, setup.budget, LENGTH, setup.chunk, setup.depth, setup.policy
        )
        one = peak_pages(manifest.cache.groups, LENGTH, limits.in_flight_tokens)
        pages = 1 + one + setup.spare
        self.cache = CacheTables(
            manifest.cache.groups, setup.seqs, PAGES, PagePool(pages), setup.retention
        )
        self.scheduler = Scheduler(limits, self.cache)
        self.runner = LateRunner(manifest, setup.seqs, pages, setup.depth, setup.seed)
        plans = plans_in_use(manifest.plans, setup.seqs, setup.budget)
        self.engine = Engine(manifest, self.scheduler, Program(self.runner, plans, self.cache, IDS))
        self._schedule = self.scheduler.schedule
        self.scheduler.schedule = self._checked  # type: ignore[method-assign]
        self.steps = 0
        self._writers: dict[int, tuple[Request, int]] = {}

    def drain(self) -> None:
        """Step until nothing is left to do."""
        for _ in range(20_000):
            if not self.scheduler.has_work:
                return
            self.engine.step()
        raise AssertionError("no progress")

    def _checked(self) -> Step | None:
        capacity = self.cache.capacity.copy()
        step = self._schedule()
        self.accounts()
        self.nobody_is_passed(step, capacity)
        if step is not None:
            self.steps += 1
            self.promises(step)
        return step

    def nobody_is_passed(self, step: Step | None, capacity: np.ndarray) -> None:
        """Behind a request that waits for pages no other takes any."""
        served = set() if step is None else {request.id for request in step.requests}
        newcomers = set() if step is None else {request.id for request in step.entered}
        left = self.limits.max_num_batched_tokens - (0 if step is None else step.tokens)
        tenants, waits = self.scheduler._tenants, False
        for request, todo in zip(tenants.running, tenants.counts.todo(tenants.slots), strict=True):
            if waits and request.id not in newcomers:
                assert self.cache.capacity[request.slot] == capacity[request.slot]
            waits |= bool(request.id not in served and todo and left)

    def promises(self, step: Step) -> None:
        """What every step keeps to."""
        limits, scheduler, pool = self.limits, self.scheduler, self.cache.pool
        assert step.tokens == sum(step.counts) == len(step.token_ids)
        assert step.tokens <= limits.max_num_batched_tokens
        assert len(scheduler.running) <= limits.max_num_seqs
        assert (np.diff(step.counts) >= 0).all() and step.counts[0] > 0, "decode rows first"
        assert step.counts[-1] <= limits.most_of_one
        assert len(set(step.slots.tolist())) == len(step.slots), "a slot appears once"
        for row in step.rows:
            request = row.request
            assert request.status is Status.RUNNING and request.slot == row.slot
            assert row.start + row.count < request.length_limit, "the last token is not computed"
            for table in self.cache.tables:
                first, stop = row.start // PAGE, pages_of(row.start + row.count)
                for page in table[row.slot, first:stop].tolist():
                    assert pool._holders[page] == 1, "a page that is written is one request's"
                    assert page not in pool.content._keys, "what can be found is not written"
                    writer, last = self._writers.get(page, (request, 0))
                    fenced = last <= scheduler._settled
                    assert writer is request or fenced, "a step in flight may still write this"
                    self._writers[page] = (request, step.number)
        ranks = [scheduler.waiting.rank(request) for request in scheduler.running]
        assert ranks == sorted(ranks)
        if limits.policy is Policy.FCFS and ranks:
            waiting = [scheduler.waiting.rank(request) for request in scheduler.waiting]
            assert not waiting or ranks[-1] < min(waiting), "nobody is overtaken"

    def accounts(self) -> None:
        """Pages held by tables and behind the fence are those that are not free, each counted."""
        pool, cache = self.cache.pool, self.cache
        held = Counter(page for table in cache.tables for page in table[table > 0].tolist())
        fenced = Counter(p for _, held in cache._fence for _, pages in held for p in pages)
        assert list(pool._holders) == [(held + fenced)[page] for page in range(pool.pages)]
        assert cache.fenced_pages == sum(fenced.values())
        free, page = [], pool._next[0]
        while page:
            free.append(page)
            page = pool._next[page]
        assert len(free) == len(set(free)) == pool.free_pages == pool.pages - 1 - len(held + fenced)
        assert all(pool.is_free(page) for page in free)
        unknown = [page not in pool.content._keys for page in free]
        assert unknown == sorted(unknown, reverse=True), "known pages are the last to be used"
        slots = np.array([request.slot for request in self.scheduler.running], np.int64)
        assert int(cache.held_pages(slots).sum()) == sum(held.values())
        assert sorted([*slots.tolist(), *self.scheduler._tenants.free_slots]) == list(
            range(self.limits.max_num_seqs)
        )

    def nothing_left(self) -> None:
        """All pages and slots are back."""
        assert not self.scheduler.has_work and not self.cache.fenced_pages
        assert self.cache.pool.free_pages == self.cache.pool.pages - 1
        assert not any(table.any() for table in self.cache.tables)
        assert len(self.scheduler._tenants.free_slots) == self.limits.max_num_seqs
        self.accounts()


def request_of(number: int, prompt: list[int], new: int, **fields: Any) -> Request:
    """A greedy request for at most `new` ids."""
    stops = fields.pop("stop_ids", frozenset())
    return Request(number, list(prompt), GREEDY, 0, stops, min(len(prompt) + new, LENGTH), **fields)
