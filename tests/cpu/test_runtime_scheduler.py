"""The scheduler and the paged cache under random traces: invariants, and tokens equal an oracle."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from kernelgen_runtime.launch.args import ArgsWriter, SlotSampling
from kernelgen_runtime.launch.plans import plans_in_use
from kernelgen_runtime.memory.cache import CacheTables
from kernelgen_runtime.memory.groups import pages_of, peak_pages
from kernelgen_runtime.memory.pool import PagePool
from kernelgen_runtime.memory.retention import Retention
from kernelgen_runtime.memory.sizing import cache_pages
from kernelgen_runtime.sample.params import SamplingParams
from kernelgen_runtime.schedule.limits import Limits
from kernelgen_runtime.schedule.request import Request, Status
from kernelgen_runtime.schedule.scheduler import Scheduler
from kernelgen_runtime.schedule.step import Step
from runtime_fakes import HYBRID, VOCAB, FakeLibrary, Groups, manifest_json, manifest_of, oracle

EOS = frozenset((VOCAB - 1,))


@dataclass
class Bench:
    """Scheduler, cache and toy library with `depth` steps in flight.

    A step's args are written when it is launched; the library runs it only just before it
    settles, after the next one was scheduled. So pages freed too early are seen.
    """

    limits: Limits
    pages: int
    groups: Groups = HYBRID
    depth: int = 1
    flight: deque[tuple[Step, int, torch.Tensor]] = field(default_factory=deque)
    touched: dict[int, tuple[Request, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = manifest_json(self.groups)
        manifest = manifest_of(values)
        seqs = self.limits.max_num_seqs
        self.cache = CacheTables(manifest.cache.groups, seqs, 16, PagePool(self.pages), Retention())
        self.scheduler = Scheduler(self.limits, self.cache)
        self.library = FakeLibrary(values)
        page_bytes = manifest.cache.page_bytes
        self.library.bind("cache", torch.zeros(self.pages, page_bytes, dtype=torch.uint8))
        self.library.bind("workspace", torch.zeros(8192, dtype=torch.uint8))
        self.library.bind("logits", torch.zeros(8, VOCAB))
        self.library.bind("last_sampled", torch.zeros(seqs, dtype=torch.int32))
        self.library.bind("sampled", torch.zeros(8, dtype=torch.int32))
        words = torch.zeros(manifest.args.words, dtype=torch.int32)
        self.writer = ArgsWriter(manifest.args, SlotSampling(seqs), words)
        self.plans = plans_in_use(manifest.plans, seqs, self.limits.max_num_batched_tokens)

    def turn(self) -> list[Request]:
        """Launch one step if there is one; settle the oldest once `depth` are in flight."""
        step = self.scheduler.schedule()
        if step is not None:
            self.check(step)
            plan = self.plans.choose(len(step.rows), step.tokens)
            self.writer.write(step, plan, self.cache)
            ends = np.cumsum([row.count for row in step.rows])
            asking = [i for i, row in enumerate(step.rows) if row.samples]
            self.writer.ask(ends[asking] - 1, asking)
            self.flight.append((step, plan.id, self.writer.tensor.clone()))
        if self.flight and (step is None or len(self.flight) >= self.depth):
            return self.settle()
        assert step is not None or not self.scheduler.has_work, "stuck with work to do"
        return []

    def settle(self) -> list[Request]:
        step, plan_id, args = self.flight.popleft()
        self.touched = {p: t for p, t in self.touched.items() if t[1] > step.number}
        self.library.step(plan_id, args)
        ids = iter(self.library.buffers["sampled"].tolist())
        return self.scheduler.settle(step, [next(ids) if r.samples else -1 for r in step.rows])

    def check(self, step: Step) -> None:
        """What every step promises."""
        limits, scheduler = self.limits, self.scheduler
        assert step.tokens == sum(row.count for row in step.rows) <= limits.max_num_batched_tokens
        assert len(scheduler.running) <= limits.max_num_seqs
        assert len({row.slot for row in step.rows}) == len(step.rows)
        counts = [row.count for row in step.rows]
        assert counts == sorted(counts) and counts[0] > 0, "decode rows first"
        for row in step.rows:
            assert row.count <= (limits.chunk_tokens or limits.max_num_batched_tokens)
            assert row.request.status is Status.RUNNING and row.slot == row.request.slot
            assert row.start + row.count < row.request.length_limit, (
                "the last token is not computed"
            )
            for (_, window), table in zip(self.groups, self.cache.tables, strict=True):
                first = 0 if window is None else max(0, row.start - window + 1)
                used = table[row.slot, first // 16 : pages_of(row.start + row.count)]
                assert (used > 0).all(), "every token that is read or written has a page"
                for page in used.tolist():
                    owner = self.touched.setdefault(page, (row.request, step.number))[0]
                    assert owner is row.request, "a step in flight may still touch this page"
                    self.touched[page] = (row.request, step.number)
        held = int(self.cache.held_pages(np.array([r.slot for r in scheduler.running])).sum())
        pool = self.cache.pool
        assert held + self.cache.fenced_pages + pool.free_pages == pool.pages - 1
        live = np.concatenate(
            [t[[r.slot for r in scheduler.running]].ravel() for t in self.cache.tables]
        )
        live = live[live > 0]
        assert len(np.unique(live)) == len(live) == held, "no page has two owners"


def make_request(number: int, rng: random.Random, max_model_len: int) -> Request:
    longest = rng.choice((8, max_model_len - 2))
    prompt = [rng.randrange(VOCAB - 1) for _ in range(rng.randint(1, longest))]
    greedy = rng.random() < 0.5
    params = SamplingParams(temperature=0.0 if greedy else 0.8, top_k=rng.choice((0, 5)))
    limit = min(len(prompt) + rng.randint(1, 80), max_model_len)
    return Request(number, prompt, params, number * 7919 - 3, EOS, limit)


def expected(request: Request, groups: Groups) -> list[int]:
    prompt, params = request.tokens[: request.prompt_tokens], request.params
    return oracle(
        prompt,
        request.length_limit,
        groups,
        EOS,
        temperature=float(np.float32(params.temperature)),
        top_k=params.top_k,
        top_p=params.top_p,
        seed=request.seed,
    )


@pytest.mark.row("B-01")
@pytest.mark.row("B-02")
@pytest.mark.row("B-05")
@pytest.mark.row("B-06")
@pytest.mark.parametrize("groups", [HYBRID, (("all", None),), (("near", 5), ("far", 40))])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_random_traces_keep_every_promise(groups: Groups, depth: int) -> None:
    """Mixed lengths, tight memory, aborts at random moments: tokens are those of each alone."""
    preempted = 0
    for seed in range(8):
        rng = random.Random(seed)
        chunk = rng.choice((None, 3, 16))
        limits = Limits(rng.randint(1, 4), rng.choice((5, 16, 40)), 90, chunk, depth)
        schema = manifest_of(manifest_json(groups)).cache
        tightest = cache_pages(schema, None, 90, limits.in_flight_tokens)
        bench = Bench(limits, tightest + rng.randint(0, 6), groups, depth)
        requests = [make_request(i, rng, 90) for i in range(7)]
        late, aborted = requests[4:], set()
        for request in requests[:4]:
            bench.scheduler.add(request)
        for turn in range(4000):
            if late and turn % 9 == 5:
                bench.scheduler.add(late.pop(0))
            victim = rng.choice(requests)
            waiting_to_be_added = victim in late
            if rng.random() < 0.01 and victim.finish_reason is None and not waiting_to_be_added:
                bench.scheduler.finish(victim, "abort")
                aborted.add(victim.id)
            bench.turn()
            if not late and not bench.scheduler.has_work:
                break
        assert not bench.scheduler.has_work, "no progress"
        preempted += bench.scheduler.preemptions
        for request in requests:
            wanted = expected(request, groups)
            assert request.draining == 0 and request.slot == -1
            if request.id in aborted:
                assert request.output_ids == wanted[: len(request.output_ids)]
            else:
                assert request.output_ids == wanted, (seed, request.id)
                last_is_end = wanted[-1] in EOS
                assert request.finish_reason == ("stop" if last_is_end else "length")
        assert bench.cache.pool.free_pages == bench.cache.pool.pages - 1, "pages balance to zero"
        assert not any(table.any() for table in bench.cache.tables)
    if any(window is None for _, window in groups):
        assert preempted > 0, "the traces must exercise preemption"


def test_first_tokens_come_in_order_of_arrival() -> None:
    bench = Bench(Limits(4, 16, 90), 60)
    requests = [
        Request(i, [i + 1] * 30, SamplingParams(temperature=0.0), 0, frozenset(), 40)
        for i in range(6)
    ]
    for request in requests:
        bench.scheduler.add(request)
    firsts: list[int] = []
    while bench.scheduler.has_work:
        firsts += [r.id for r in bench.turn() if r.id not in firsts]
    assert firsts == list(range(6))


def test_decode_goes_on_while_a_long_prompt_is_read_in_chunks() -> None:
    bench = Bench(Limits(2, 16, 200), 60)
    short = Request(0, [1, 2, 3], SamplingParams(temperature=0.0), 0, frozenset(), 40)
    long = Request(1, [5] * 120, SamplingParams(temperature=0.0), 0, frozenset(), 122)
    bench.scheduler.add(short)
    bench.turn()
    bench.scheduler.add(long)
    produced = []
    while len(long.tokens) == 120:
        before = len(short.tokens)
        bench.turn()
        produced.append(len(short.tokens) - before)
    assert len(produced) == 8 and set(produced) == {1}, "15 prompt tokens beside one decode a step"


def test_preempted_request_gives_the_same_tokens() -> None:
    """Two requests that grow beyond what both can hold: the later one is recomputed."""
    limits = Limits(2, 16, 90)
    bench = Bench(limits, 1 + 6 + 3, (("all", None),))
    requests = [
        Request(i, [3 + i] * 10, SamplingParams(temperature=0.0), 0, frozenset(), 88)
        for i in range(2)
    ]
    for request in requests:
        bench.scheduler.add(request)
    while bench.scheduler.has_work:
        bench.turn()
    assert requests[0].preemptions == 0 and 1 <= requests[1].preemptions <= 6
    for request in requests:
        assert request.output_ids == oracle([3 + request.id] * 10, 88, (("all", None),))


def greedy(number: int, prompt: list[int], limit: int) -> Request:
    return Request(number, prompt, SamplingParams(temperature=0.0), 0, frozenset(), limit)


def test_preempted_in_flight_waits_for_its_old_timeline_and_keeps_its_token() -> None:
    bench = Bench(Limits(2, 16, 90, steps_in_flight=2), 60, depth=2)
    request = greedy(0, [4] * 10, 30)
    bench.scheduler.add(request)
    assert bench.turn() == []
    bench.scheduler._preempt(request)
    assert request.draining == 1
    assert bench.scheduler.schedule() is None, "its token is still on the way"
    assert bench.settle() == [request] and request.tokens[10:] == oracle([4] * 10, 11)
    assert request.draining == 0 and bench.cache.fenced_pages == 0
    while bench.scheduler.has_work:
        bench.turn()
    assert request.output_ids == oracle([4] * 10, 30)


def test_result_of_an_old_timeline_moves_no_counter() -> None:
    """Preempted in the middle of its prompt, resumed at once in the same slot."""
    bench = Bench(Limits(1, 16, 200, steps_in_flight=3), 100, depth=3)
    request = greedy(0, [4] * 100, 110)
    bench.scheduler.add(request)
    for _ in range(2):
        bench.turn()
    bench.scheduler._preempt(request)
    bench.turn()
    counts, slot = bench.scheduler._tenants.counts, request.slot
    assert request.status is Status.RUNNING and counts.scheduled[slot] == 16
    assert bench.cache._findable[slot] == 0, "the first step of the old timeline settled just now"
    while bench.scheduler.has_work:
        bench.turn()
    assert request.output_ids == oracle([4] * 100, 110)


def test_pages_behind_the_fence_count_as_coming() -> None:
    """One request grows, one victim is enough: the rest must not be evicted while pages return."""
    groups = (("all", None),)
    bench = Bench(Limits(3, 48, 90, steps_in_flight=2), 1 + 6, groups, depth=2)
    requests = [greedy(i, [i + 1] * 15, 60 if i == 0 else 40) for i in range(3)]
    for request in requests:
        bench.scheduler.add(request)
    while bench.scheduler.has_work and not bench.scheduler.preemptions:
        bench.turn()
    bench.turn()
    assert [r.preemptions for r in requests] == [0, 0, 1]
    while bench.scheduler.has_work:
        bench.turn()
    for request in requests:
        limit = request.length_limit
        assert request.output_ids == oracle([request.id + 1] * 15, limit, groups)


def test_window_groups_use_their_window_only() -> None:
    groups = (("near", 20),)
    bench = Bench(Limits(1, 16, 250), 1 + peak_pages(manifest_groups(groups), 250, 16), groups)
    request = Request(0, [9] * 200, SamplingParams(temperature=0.0), 0, frozenset(), 250)
    bench.scheduler.add(request)
    most = 0
    while bench.scheduler.has_work:
        bench.turn()
        if request.slot >= 0:
            most = max(most, int(bench.cache.held_pages(np.array([request.slot]))[0]))
    assert bench.cache.pool.pages == 5 and most <= 4, "window 20 + 16 in flight touch 4 pages"
    assert request.output_ids == oracle([9] * 200, 250, groups)


def manifest_groups(groups: Groups) -> tuple[object, ...]:
    return manifest_of(manifest_json(groups)).cache.groups


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 100, 256])
@pytest.mark.parametrize("window", [1, 2, 16, 17, 20, 100])
@pytest.mark.parametrize("chunk", [1, 2, 16, 33])
def test_peak_pages_is_exact(tokens: int, window: int, chunk: int) -> None:
    """Brute force: hold what steps of `chunk` tokens need, from any start, release by settled."""
    group = manifest_groups((("near", window),))
    worst = 0
    for offset in range(chunk):
        settled = min(offset, tokens)
        while settled < tokens:
            stop = min(settled + chunk, tokens)
            first = max(0, settled - window + 1) // 16
            worst = max(worst, pages_of(stop) - first)
            settled = stop
    bound = peak_pages(group, tokens, chunk)
    assert worst <= bound <= worst + 1
