"""Pages of states: what a step reads is the state after exactly the tokens before it, always."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest
from kernelgen_runtime.artifact.manifest import STATE_WINDOW, CacheGroup, CacheSchema
from kernelgen_runtime.memory.cache import CacheTables
from kernelgen_runtime.memory.groups import peak_pages
from kernelgen_runtime.memory.pool import PagePool
from kernelgen_runtime.memory.retention import Retention
from kernelgen_runtime.memory.states import held_states, state_pages, state_rows
from kernelgen_runtime.sample.params import SamplingParams
from kernelgen_runtime.schedule.limits import Limits
from kernelgen_runtime.schedule.request import Request
from kernelgen_runtime.schedule.scheduler import Scheduler
from kernelgen_runtime.schedule.step import Step

LENGTH = 90
TOKENS, STATES = CacheGroup("full", None, (1,)), CacheGroup("s", STATE_WINDOW, (0, 2), True)
GROUPS = (TOKENS, STATES)
WINDOWED = (CacheGroup("near", 8, (3,)), *GROUPS)
SCHEMA = CacheSchema(64, GROUPS, 128)
GREEDY = SamplingParams(temperature=0.0)


def next_id(tokens: list[int]) -> int:
    return hash(tuple(tokens)) % 50


KEPT = Retention()


class Simulation:
    """A scheduler whose steps run when they settle, as late as can be; pages hold tokens."""

    def __init__(self, limits: Limits, groups=GROUPS, spare: int = 4, retention=KEPT) -> None:
        self.limits = limits
        one = peak_pages(groups, LENGTH, limits.in_flight_tokens)
        count = state_pages(SCHEMA, limits.max_num_seqs, limits.steps_in_flight)
        self.states = PagePool(count)
        self.cache = CacheTables(
            groups, limits.max_num_seqs, 8, PagePool(1 + one + spare), retention, self.states
        )
        self.table = self.cache.tables[len(groups) - 1]
        self.scheduler = Scheduler(limits, self.cache)
        self.holds: dict[int, tuple[int, ...]] = {}
        self.flight: deque[tuple[Step, list]] = deque()
        self.marks = 0

    def run(self) -> None:
        for _ in range(10_000):
            if not self.scheduler.has_work:
                return
            while len(self.flight) < self.limits.steps_in_flight:
                step = self.scheduler.schedule()
                if step is None:
                    break
                ends = step.starts + step.counts
                rows = state_rows(self.table, step.slots, step.starts, ends)
                self.flight.append((step, [column.tolist() for column in rows]))
                self.within_bounds()
            self.settle()
        raise AssertionError("no progress")

    def settle(self) -> None:
        step, rows = self.flight.popleft()
        sampled = []
        for row, before, after, mark, at in zip(step.rows, *rows, strict=True):
            tokens, stop = list(row.request.tokens), row.start + row.count
            while len(tokens) < stop:  # an id that is still in flight
                tokens.append(next_id(tokens))
            if row.start:
                assert self.holds[before] == tuple(tokens[: row.start]), "the state before the step"
            else:
                assert before == 0
            assert after > 0
            if mark:
                assert row.start < at < stop and at % 16 == 0 and mark != after
                self.holds[mark] = tuple(tokens[:at])
                self.marks += 1
            self.holds[after] = tuple(tokens[:stop])
            sampled.append(next_id(tokens[:stop]) if row.samples else -1)
        self.scheduler.settle(step, sampled)

    def within_bounds(self) -> None:
        held = (self.table > 0).sum(1)
        assert held.max() <= held_states(self.limits.steps_in_flight)
        fenced = {
            page
            for _, parts in self.cache._fence
            for pool, pages in parts
            if pool is self.states
            for page in pages
        }
        used = self.states.pages - 1 - self.states.free_pages
        assert used == len(fenced | set(self.table[self.table > 0].tolist()))

    def nothing_left(self) -> None:
        assert self.states.free_pages == self.states.pages - 1
        assert self.cache.pool.free_pages == self.cache.pool.pages - 1
        assert not self.table.any() and not self.cache.fenced_pages


def request(number: int, prompt: list[int], new: int) -> Request:
    return Request(number, list(prompt), GREEDY, 0, frozenset(), min(len(prompt) + new, LENGTH))


@pytest.mark.row("R-127")
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("groups", [GROUPS, WINDOWED], ids=["full", "window"])
@pytest.mark.parametrize("seed", range(12))
def test_every_schedule_reads_the_right_states(seed: int, groups, depth: int) -> None:
    """Shared prefixes, chunks, preemption and steps in flight: A, B, A again, all at once."""
    rng = random.Random(seed)
    limits = Limits(
        rng.choice([1, 2, 4]),
        rng.choice([5, 16, 33, 64]),
        LENGTH,
        rng.choice([None, 1, 7, 16, 20]),
        depth,
    )
    retention = rng.choice([Retention(), Retention(32), Retention(None), None])
    simulation = Simulation(limits, groups, rng.randrange(6), retention)
    prefixes = [[rng.randrange(50) for _ in range(60)] for _ in range(2)]
    for round_ in range(3):
        wanted = []
        for i in range(6):
            prefix = rng.choice(prefixes)[: rng.choice([1, 15, 16, 17, 32, 40, 48, 60])]
            tail = [rng.randrange(50) for _ in range(rng.choice([0, 1, 5]))]
            wanted.append(request(10 * round_ + i, [*prefix, *tail], rng.choice([1, 3, 20, 40])))
            simulation.scheduler.add(wanted[-1])
        simulation.run()
        for done in wanted:
            tokens = done.tokens[: done.prompt_tokens]
            while len(tokens) < len(done.tokens):
                tokens.append(next_id(tokens))
            assert done.tokens == tokens and len(tokens) == done.length_limit
    simulation.nothing_left()


@pytest.mark.parametrize("prompt", [15, 16, 17, 33, 48, 49])
@pytest.mark.parametrize("chunk", [None, 16, 7])
def test_a_prompt_that_comes_again_goes_on_from_its_last_boundary(
    prompt: int, chunk: int | None
) -> None:
    simulation = Simulation(Limits(2, 64, LENGTH, chunk))
    tokens = list(range(prompt))
    for number in range(2):
        simulation.scheduler.add(request(number, tokens, 2))
        simulation.run()
        expected = 0 if number == 0 else (prompt - 1) // 16 * 16
        assert simulation.cache.prefix_counts.hit == expected


def test_the_next_turn_goes_on_from_the_last_boundary_of_the_answer() -> None:
    simulation = Simulation(Limits(1, 64, LENGTH))
    first = request(0, list(range(10)), 40)
    simulation.scheduler.add(first)
    simulation.run()
    simulation.scheduler.add(request(1, [*first.tokens, 3, 4], 2))
    simulation.run()
    assert simulation.cache.prefix_counts.hit == 48  # of 50 tokens


def test_one_forward_leaves_a_state_inside_itself() -> None:
    """40 tokens in one step: the state after 32 of them is kept beside that after all."""
    simulation = Simulation(Limits(1, 64, LENGTH))
    simulation.scheduler.add(request(0, list(range(40)), 1))
    simulation.run()
    assert simulation.marks == 1
    assert tuple(range(32)) in simulation.holds.values()


def test_nothing_is_kept_where_nothing_is_found() -> None:
    simulation = Simulation(Limits(1, 64, LENGTH), retention=None)
    simulation.scheduler.add(request(0, list(range(40)), 30))
    simulation.run()
    assert simulation.marks == 0 and simulation.cache.prefix_counts.hit == 0


def test_rows_of_a_step() -> None:
    table = np.array([[0, 0, 0, 0], [7, 8, 9, 4]], np.int32)
    slots, starts = np.array([1, 1, 1, 1]), np.array([0, 15, 16, 20])
    rows = state_rows(table, slots, starts, np.array([16, 17, 17, 50]))
    assert rows.before.tolist() == [0, 7, 7, 8]
    assert rows.after.tolist() == [7, 8, 8, 4]
    assert rows.mark.tolist() == [0, 7, 0, 9]
    assert rows.mark_at.tolist() == [0, 16, 0, 48]


def test_models_without_states_have_no_pages_of_them() -> None:
    assert state_pages(CacheSchema(64, (TOKENS,)), 8, 2) == 0
    assert state_pages(SCHEMA, 8, 1) == 1 + 8 * 5
