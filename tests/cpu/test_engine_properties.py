"""The engine under random traces: every promise at every step, and the tokens of each alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from engine_fakes import IDS, LENGTH, Setup, Watched, expected, request_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernelgen_runtime.memory.retention import Retention
from kernelgen_runtime.schedule.limits import Policy
from kernelgen_runtime.schedule.request import Request

FULL = (("full", None),)
HYBRID = (("full", None), ("window", 20))
WINDOWS = (("near", 5), ("far", 40))
STEPS = 100_000
ABORTS = 10_000
TRACES = 1000


@dataclass(frozen=True)
class Event:
    """What happens before step number `at`: a request comes, or one of those that came goes."""

    at: int
    request: Request | None = None
    abort: int = 0


# Depths and budgets small enough that every edge is near: a page has 16 tokens, a request 90.
setups = st.builds(
    Setup,
    groups=st.sampled_from([FULL, HYBRID, WINDOWS]),
    seqs=st.integers(1, 6),
    budget=st.sampled_from([5, 16, 40]),
    chunk=st.sampled_from([None, 1, 3, 16]),
    depth=st.integers(1, 3),
    spare=st.integers(0, 12),
    policy=st.sampled_from(list(Policy)),
    retention=st.sampled_from([None, Retention(0), Retention(None), Retention(32)]),
    seed=st.integers(0, 99),
)


@st.composite
def requests(draw: st.DrawFn, number: int) -> Request:
    """A request; prompts are cut from three texts, so that many begin alike."""
    text = random.Random(draw(st.integers(0, 2)))
    whole = [text.randrange(IDS) for _ in range(LENGTH)]
    length = draw(st.sampled_from([1, 5, 16, 17, 33, 48, 60, LENGTH - 1]))
    own = [draw(st.integers(0, IDS - 1))] if draw(st.booleans()) else []
    prompt = (whole[:length] + own)[: LENGTH - 1]
    return request_of(
        number,
        prompt,
        draw(st.integers(1, 50)),
        stop_ids=frozenset(draw(st.sets(st.integers(0, IDS - 1), max_size=3))),
        priority=draw(st.integers(-1, 1)),
        cache_salt=draw(st.sampled_from([None, None, "a"])),
        needs_all_rows=draw(st.integers(0, 5)) == 0,
    )


@st.composite
def traces(draw: st.DrawFn) -> list[Event]:
    """Up to twelve requests, some of which are aborted."""
    events, at = [], 0
    for number in range(draw(st.integers(1, 12))):
        at += draw(st.sampled_from([0, 0, 1, 4, 20]))
        events.append(Event(at, draw(requests(number))))
        if draw(st.integers(0, 3)) == 0:
            events.append(Event(at + draw(st.integers(0, 30)), None, draw(st.integers(0, number))))
    return sorted(events, key=lambda event: event.at)


def play(setup: Setup, trace: list[Event]) -> tuple[Watched, list[Request], set[int]]:
    """Run a trace to its end; return its requests, and those that were aborted unfinished."""
    engine, came, aborted = Watched(setup), [], set()
    number = 0
    for event in trace:
        while number < event.at:
            engine.engine.step()
            number += 1
        if event.request is not None:
            came.append(replace(event.request, tokens=list(event.request.tokens)))
            engine.engine.add(came[-1])
        elif came[event.abort].finish_reason is None:
            engine.engine.abort(came[event.abort])
            aborted.add(event.abort)
    engine.drain()
    return engine, came, aborted


def check(setup: Setup, trace: list[Event]) -> int:
    """Run a trace; return its steps."""
    engine, came, aborted = play(setup, trace)
    engine.nothing_left()
    for request in came:
        wanted = expected(request, setup.groups)
        assert request.draining == 0 and request.slot == -1
        if request.id in aborted:
            assert request.output_ids == wanted[: len(request.output_ids)]
        else:
            assert request.output_ids == wanted, request.id
            ended = wanted[-1] in request.stop_ids
            assert request.finish_reason == ("stop" if ended else "length")
        if request.needs_all_rows or setup.retention is None:
            assert request.cached_tokens == 0
    return engine.steps


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.mark.row("B-01")
@pytest.mark.row("B-02")
@pytest.mark.row("B-04")
@pytest.mark.row("B-05")
@pytest.mark.row("B-06")
@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(setups, traces())
def test_every_promise_at_every_step(setup: Setup, trace: list[Event]) -> None:
    check(setup, trace)


@pytest.mark.soak
@pytest.mark.row("B-01")
@pytest.mark.row("B-05")
def test_a_hundred_thousand_steps() -> None:
    steps = 0

    @settings(max_examples=2500, deadline=None, suppress_health_check=QUIET, database=None)
    @given(setups, traces())
    def run(setup: Setup, trace: list[Event]) -> None:
        nonlocal steps
        steps += check(setup, trace)

    run()
    assert steps >= STEPS


def same_asynchronously(seed: int) -> None:
    """One trace, one step at a time and two in flight: each request has the same tokens."""
    chance = random.Random(seed)
    setup = Setup(
        groups=chance.choice([FULL, HYBRID, WINDOWS]),
        seqs=chance.randint(1, 6),
        budget=chance.choice([5, 16, 40]),
        spare=chance.randint(0, 10),
        seed=seed,
    )
    texts = [[chance.randrange(IDS) for _ in range(LENGTH)] for _ in range(2)]
    trace, at = [], 0
    for number in range(chance.randint(2, 9)):
        at += chance.choice([0, 0, 2, 9])
        prompt = chance.choice(texts)[: chance.choice([1, 15, 16, 40, 70])]
        stops = frozenset(chance.sample(range(IDS), chance.choice([0, 4])))
        trace.append(Event(at, request_of(number, prompt, chance.randint(1, 60), stop_ids=stops)))
        if chance.random() < 0.3:
            trace.append(Event(at + chance.randint(0, 30), None, chance.randint(0, number)))
    trace.sort(key=lambda event: event.at)
    (one, alone, gone), (two, beside, left) = (play(replace(setup, depth=d), trace) for d in (1, 2))
    for a, b in zip(alone, beside, strict=True):
        if a.id not in gone | left:
            assert (a.tokens, a.finish_reason) == (b.tokens, b.finish_reason)
        else:  # aborted at another moment: one has the beginning of the other
            count = min(len(a.tokens), len(b.tokens))
            assert a.tokens[:count] == b.tokens[:count]
    one.nothing_left()
    two.nothing_left()


@pytest.mark.row("B-06")
def test_two_steps_in_flight_give_the_tokens_of_one() -> None:
    for seed in range(40):
        same_asynchronously(seed)


@pytest.mark.soak
@pytest.mark.row("B-06")
def test_two_steps_in_flight_give_the_tokens_of_one_in_a_thousand_traces() -> None:
    for seed in range(TRACES):
        same_asynchronously(seed)


def abort_at_random(aborts: int, seed: int) -> None:
    chance = random.Random(seed)
    setup = Setup(
        HYBRID,
        seqs=6,
        budget=40,
        depth=chance.randint(1, 3),
        spare=20,
        policy=chance.choice(list(Policy)),
        seed=seed,
    )
    engine, live, done = Watched(setup), [], 0
    texts = [[chance.randrange(IDS) for _ in range(LENGTH)] for _ in range(4)]
    while done < aborts:
        while len(live) < 12:
            prompt = chance.choice(texts)[: chance.randint(1, 80)]
            live.append(request_of(done, prompt, chance.randint(1, 40), priority=done % 3))
            engine.engine.add(live[-1])
        for _ in range(chance.choice([0, 1, 1, 3])):
            engine.engine.step()
        live = [request for request in live if request.finish_reason is None]
        for request in chance.sample(live, min(len(live), chance.choice([1, 4, 12]))):
            engine.engine.abort(request)
            done += 1
    engine.drain()
    engine.nothing_left()


def test_aborts_leave_nothing_behind() -> None:
    for seed in range(3):
        abort_at_random(300, seed)


@pytest.mark.soak
def test_ten_thousand_aborts_leave_nothing_behind() -> None:
    abort_at_random(ABORTS, 0)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_aborted_at_every_point_of_its_life(depth: int) -> None:
    """One request after 0, 1, 2, … steps, beside one that goes on."""
    setup = Setup(HYBRID, seqs=2, budget=16, depth=depth, spare=6)
    prompt = [3] * 50
    for point in range(30):
        engine = Watched(setup)
        victim, other = request_of(0, prompt, 20), request_of(1, [3] * 40, 20)
        engine.engine.add(victim)
        engine.engine.add(other)
        for _ in range(point):
            engine.engine.step()
        engine.engine.abort(victim)
        engine.engine.abort(victim)  # twice is once
        engine.drain()
        assert other.output_ids == expected(other, HYBRID)
        assert victim.finish_reason in ("abort", "length")
        engine.nothing_left()


def test_a_newcomer_is_not_let_in_to_be_preempted_at_once() -> None:
    """The first one will need the last page soon; whoever got it would have to give it back."""
    engine = Watched(Setup(FULL, seqs=2, budget=40, spare=0))
    for number, length in enumerate((79, 10)):
        engine.engine.add(request_of(number, [number + 1] * length, 30))
    engine.drain()
    assert engine.scheduler.preemptions == 0


@pytest.mark.row("B-01")
def test_behind_one_that_waits_for_pages_nobody_takes_any() -> None:
    """Two pages are on their way back, one is free: the first in rank needs two, the next one."""
    engine = Watched(
        Setup(FULL, seqs=3, budget=40, depth=2, spare=10, policy=Policy.PRIORITY, retention=None)
    )
    scheduler, pool = engine.scheduler, engine.cache.pool
    behind, gone = request_of(0, [1] * 15, 40), request_of(1, [2] * 20, 40)
    first = request_of(2, [3] * 72, 9, priority=-1)
    scheduler.add(behind)
    scheduler.add(gone)
    steps = [scheduler.schedule()]
    scheduler.add(first)
    steps.append(scheduler.schedule())
    assert [step and step.counts.tolist() for step in steps] == [[15, 20], [1, 1, 38]]
    assert steps[0] is not None
    scheduler.settle(steps[0], [5, 5])
    scheduler.finish(gone, "abort")
    taken = pool.take(pool.free_pages - 1) or []
    engine.scheduler.schedule = engine._schedule  # type: ignore[method-assign]
    assert engine.cache.fenced_pages == 2 and scheduler.schedule() is None
    assert pool.free_pages == 1 and scheduler.preemptions == 0
    assert steps[1] is not None
    scheduler.settle(steps[1], [6, 6, -1])
    step = scheduler.schedule()
    assert step is not None and [r.id for r in step.requests] == [0, 2]
    pool.give_back(taken)
