"""Pages that are found again: digests, the common prefix of groups, what stays, what goes first."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import deque
from itertools import product

import pytest
from engine_fakes import IDS, Setup, Watched, expected, request_of
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelgen_runtime.artifact.manifest import CacheGroup
from kernelgen_runtime.memory.chain import SEED_VARIABLE, Chain, root_digest
from kernelgen_runtime.memory.content import Content
from kernelgen_runtime.memory.groups import first_live_page, peak_pages
from kernelgen_runtime.memory.pool import PagePool
from kernelgen_runtime.memory.prefix import find_prefix
from kernelgen_runtime.memory.retention import Retention
from kernelgen_runtime.schedule.request import Request
from runtime_fakes import Groups, environment

PAGE = 16
FULL, NEAR, FAR = CacheGroup("a", None, (0,)), CacheGroup("b", 20, (1,)), CacheGroup("c", 70, (2,))
HYBRID = (("full", None), ("window", 20))


# Digests.

PRINT = (
    "from kernelgen_runtime.memory.chain import Chain;"
    "print(Chain(list(range(40)), 's').digests(2)[1].hex())"
)


@pytest.mark.row("R-129")
def test_digests_are_the_same_in_every_process() -> None:
    env = {k: v for k, v in environment().items() if k not in ("PYTHONHASHSEED", SEED_VARIABLE)}
    runs = [
        subprocess.run(
            [sys.executable, "-c", PRINT], env=env | more, capture_output=True, text=True
        )
        for more in ({}, {}, {SEED_VARIABLE: "x"})
    ]
    first, second, seeded = (run.stdout for run in runs)
    assert first == second == Chain(list(range(40)), "s").digests(2)[1].hex() + "\n"
    assert len(seeded) == len(first) and seeded != first, "the variable is honoured"


def test_a_digest_stands_for_every_token_before_and_for_the_salt() -> None:
    tokens = list(range(48))
    base = Chain(tokens).digests(3)
    assert len(set(base)) == 3
    for place in range(48):
        other = Chain([*tokens[:place], 99, *tokens[place + 1 :]]).digests(3)
        same = [a == b for a, b in zip(base, other, strict=True)]
        assert same == [place >= PAGE * (i + 1) for i in range(3)]
    salts = [Chain(tokens, salt).digests(1)[0] for salt in (None, "", "a", "b")]
    assert len(set(salts)) == 4
    assert root_digest("a", "") != root_digest(None, "a") != root_digest(None, "")


def test_a_chain_grows_with_its_tokens() -> None:
    tokens = list(range(20))
    chain = Chain(tokens)
    assert len(chain.digests(1)) == 1
    tokens.extend(range(20, 40))
    assert chain.digests(2) == Chain(list(range(40))).digests(2) and chain.replayed == 20


# The longest common prefix.


@pytest.mark.row("B-03")
@pytest.mark.row("B-04")
@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from([FULL, NEAR, FAR]), min_size=1, max_size=3, unique=True),
    st.integers(0, 9),
    st.data(),
)
def test_the_longest_prefix_by_trying_all(
    groups: list[CacheGroup], most: int, data: st.DataObject
) -> None:
    digests = Chain(list(range(PAGE * most))).digests(most)
    there = {
        (g, i): data.draw(st.booleans() | st.just(True))
        for g, i in product(range(len(groups)), range(most))
    }
    content = Content()
    for number, ((g, i), known) in enumerate(there.items(), 1):
        if known:
            content.add(g, digests[i], number, True)

    def good(of: list[int], pages: int) -> bool:
        return all(
            there[g, i] for g in of for i in range(first_live_page(groups[g], PAGE * pages), pages)
        )

    def best(of: list[int]) -> int:
        return PAGE * max(pages for pages in range(most + 1) if good(of, pages))

    hit = find_prefix([content] * len(groups), groups, digests, most)
    assert hit.tokens == best(list(range(len(groups))))
    assert hit.alone == tuple(best([g]) for g in range(len(groups)))
    for g, pages in enumerate(hit.pages):
        first = first_live_page(groups[g], hit.tokens)
        wanted = [content.find(g, digest) for digest in digests[first : hit.tokens // PAGE]]
        assert list(pages) == wanted


# What stays.


@pytest.mark.row("R-128")
@pytest.mark.parametrize("window", [1, 2, 16, 17, 18, 40, 100])
@pytest.mark.parametrize("interval", [None, 0, 1, 16, 40, 100])
@pytest.mark.parametrize("replayed", [1, 16, 17, 160, 161])
def test_what_a_window_keeps_by_trying_all(
    window: int, interval: int | None, replayed: int
) -> None:
    group, retention = CacheGroup("w", window, (0,)), Retention(interval)
    points = {(replayed - 1) // PAGE}
    if interval:
        points |= {m // PAGE for m in range(0, 1000, interval)}
    for page in range(20):
        needed = any(first_live_page(group, PAGE * point) <= page < point for point in points)
        assert retention.keeps(group, page, replayed) == (interval is None or needed)
        assert retention.keeps(FULL, page, replayed)


def run(engine: Watched, *requests: Request) -> list[Request]:
    """Run requests one after the other; each must have its own tokens."""
    for request in requests:
        engine.engine.add(request)
        engine.drain()
        assert request.output_ids == expected(request, engine.groups)
    return list(requests)


TEXT = [(7 * i) % IDS for i in range(90)]


def test_a_repeated_prompt_is_found_but_for_its_last_token() -> None:
    for length, found in ((16, 0), (17, 16), (32, 16), (33, 32), (80, 64)):
        engine = Watched(Setup(HYBRID, spare=40))
        first, second = run(engine, *(request_of(i, TEXT[:length], 5) for i in range(2)))
        assert (first.cached_tokens, second.cached_tokens) == (0, found)
        counts = engine.cache.prefix_counts
        assert (counts.queried, counts.hit) == (2 * length, found)
        assert counts.alone == [found, found]


@pytest.mark.row("R-128")
@pytest.mark.parametrize(
    ("interval", "found"), [(0, (0, 0)), (64, (0, 64)), (32, (48, 64)), (None, (48, 64))]
)
def test_what_others_find_of_a_prompt(interval: int | None, found: tuple[int, int]) -> None:
    """The window keeps the end of the prompt; a prompt cut in the middle needs the middle."""
    for length, wanted in zip((55, 75), found, strict=True):
        engine = Watched(Setup(HYBRID, spare=60, retention=Retention(interval)))
        again = [request_of(i, TEXT[:85], 2) for i in range(2)]
        *_, again[1], part = run(engine, *again, request_of(2, TEXT[:length], 2))
        assert (again[1].cached_tokens, part.cached_tokens) == (80, wanted)
        whole = (length - 1) // PAGE * PAGE
        assert engine.cache.prefix_counts.alone == [80 + whole, 80 + wanted], "who spoils it"


def test_the_next_turn_goes_on_where_the_last_one_ended() -> None:
    engine = Watched(Setup(HYBRID, spare=60))
    (first,) = run(engine, request_of(0, TEXT[:20], 45))
    whole = first.tokens
    assert len(whole) == 65
    (second,) = run(engine, request_of(1, [*whole, 5, 6, 7], 5))
    assert second.cached_tokens == 64


def test_a_salt_keeps_requests_apart() -> None:
    engine = Watched(Setup(HYBRID, spare=60))
    salts = (None, "a", "b", "a", None)
    found = [
        request.cached_tokens
        for request in run(
            engine, *(request_of(i, TEXT[:40], 2, cache_salt=s) for i, s in enumerate(salts))
        )
    ]
    assert found == [0, 0, 0, 32, 32]


def test_without_caching_nothing_is_kept() -> None:
    engine = Watched(Setup(HYBRID, spare=60, retention=None))
    first, second = run(engine, *(request_of(i, TEXT[:40], 2) for i in range(2)))
    assert first.cached_tokens == second.cached_tokens == 0
    assert len(engine.cache.pool.content) == 0 and engine.cache.prefix_counts.queried == 0


def test_a_running_neighbour_is_shared_with() -> None:
    engine = Watched(Setup((("full", None),), spare=8, seqs=3, budget=40))
    requests = [request_of(i, TEXT[:60], 20) for i in range(3)]
    for request in requests:
        engine.engine.add(request)
        engine.engine.step()
        engine.engine.step()
    tables = engine.cache.tables[0][[request.slot for request in requests]]
    assert (tables[:, :3] == tables[0, :3]).all() and len(set(tables[:, 3].tolist())) == 3
    engine.drain()
    assert [request.cached_tokens for request in requests] == [0, 48, 48]
    assert all(request.output_ids == expected(request, engine.groups) for request in requests)
    engine.nothing_left()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("groups", [(("full", None),), HYBRID])
def test_equal_prompts_that_come_together_are_computed_once(depth: int, groups: Groups) -> None:
    """Those behind the first wait for it: a step or two, not until it ends."""
    engine = Watched(Setup(groups, seqs=6, budget=64, depth=depth, spare=60))
    requests = [request_of(i, TEXT[:80], 9) for i in range(6)]
    for request in requests:
        engine.engine.add(request)
    while not requests[0].output_ids:
        engine.engine.step()
    while any(request.slot < 0 for request in requests):
        engine.engine.step()
        assert len(requests[0].output_ids) <= 4, "not until it ends"
    engine.drain()
    assert [request.cached_tokens for request in requests] == [0, 64, 64, 64, 64, 64]
    assert all(request.output_ids == expected(request, groups) for request in requests)
    engine.nothing_left()


def test_a_preempted_request_finds_its_own_pages() -> None:
    engine = Watched(Setup((("full", None),), spare=1, seqs=2, budget=40))
    requests = [request_of(i, [3 + i] * 10, 78) for i in range(2)]
    for request in requests:
        engine.engine.add(request)
    engine.drain()
    assert requests[1].preemptions >= 1 and requests[1].cached_tokens == 0
    assert all(request.output_ids == expected(request, engine.groups) for request in requests)


@pytest.mark.parametrize("depth", [1, 2])
def test_what_an_erroneous_request_computed_is_forgotten(depth: int) -> None:
    engine = Watched(Setup(HYBRID, spare=60, depth=depth))
    victim = request_of(0, TEXT[:60], 20)
    engine.engine.add(victim)
    for _ in range(6):
        engine.engine.step()
    assert len(engine.cache.pool.content) > 0
    engine.engine.abort(victim, "error")
    engine.drain()
    assert len(engine.cache.pool.content) == 0
    (again,) = run(engine, request_of(1, TEXT[:60], 5))
    assert again.cached_tokens == 0


def test_cleared_content_is_not_found() -> None:
    engine = Watched(Setup(HYBRID, spare=60))
    run(engine, request_of(0, TEXT[:60], 5))
    engine.cache.pool.content.clear()
    (again,) = run(engine, request_of(1, TEXT[:60], 5))
    assert again.cached_tokens == 0


# The pool.


@pytest.mark.row("B-02")
def test_pages_are_used_in_order_of_what_is_lost() -> None:
    pool = PagePool(6)
    assert pool.take(5) == [1, 2, 3, 4, 5] and pool.take(1) is None
    for page in (1, 2, 3):
        pool.content.add(0, bytes([page]), page, wanted=page != 3)
    pool.give_back([2])
    pool.give_back([1, 3, 4])
    pool.share(2)
    pool.give_back([2])  # used again: 1 is the oldest now
    assert pool.content.find(0, bytes([3])) is None, "nobody wanted it"
    assert pool.take(4) == [3, 4, 1, 2] and len(pool.content) == 0
    pool.give_back([3])
    with pytest.raises(AssertionError, match="page 3 is not in use"):
        pool.give_back([3])
    with pytest.raises(AssertionError, match="page 0 is not in use"):
        pool.give_back([0])


@pytest.mark.row("B-02")
def test_a_page_with_two_holders_is_free_after_both() -> None:
    pool = PagePool(3)
    (page,) = pool.take(1) or []
    pool.share(page)
    pool.give_back([page])
    assert not pool.is_free(page) and pool.free_pages == 1
    pool.give_back([page])
    assert pool.is_free(page) and pool.free_pages == 2


def test_equal_pages_are_all_kept() -> None:
    content = Content()
    for page in (1, 2, 3):
        content.add(0, b"x", page, True)
    content.add(1, b"x", 4, True)
    for page in (2, 1, 3):
        assert content.find(0, b"x") in {1, 2, 3}
        content.forget(page)
        content.forget(page)
    assert content.find(0, b"x") is None and content.find(1, b"x") == 4 and len(content) == 1


@pytest.mark.row("B-02")
def test_pool_against_plain_lists() -> None:
    chance = random.Random(1)
    pool, fresh, known = PagePool(40), deque(range(1, 40)), deque()
    used: list[int] = []
    for turn in range(3000):
        if chance.random() < 0.5:
            count = chance.randint(0, 8)
            taken = pool.take(count)
            if count > len(fresh) + len(known):
                assert taken is None
                continue
            assert taken == [(fresh or known).popleft() for _ in range(count)]
            used += taken
        elif known and chance.random() < 0.3:
            page = chance.choice(list(known))
            known.remove(page)
            pool.share(page)
            used.append(page)
        else:
            back = [used.pop(chance.randrange(len(used))) for _ in range(min(len(used), 3))]
            keep = chance.random() < 0.5
            for page in back:
                if keep:
                    pool.content.add(0, f"{page} {turn}".encode(), page, True) if not (
                        pool.content.is_wanted(page)
                    ) else None
            pool.give_back(back)
            known.extend(p for p in back if pool.content.is_wanted(p))
            fresh.extendleft(reversed([p for p in back if not pool.content.is_wanted(p)]))
        assert pool.free_pages == len(fresh) + len(known)
        assert all(pool.is_free(page) != (page in used) for page in range(1, 40))


@pytest.mark.row("B-04")
@pytest.mark.parametrize("windows", [(None,), (20,), (None, 20), (None, 20, 70), (5, 40)])
def test_one_pool_serves_every_mix_of_groups(windows: tuple[int | None, ...]) -> None:
    """The peak of one request, computed; and what a request of every length really held."""
    named = tuple((f"g{i}", window) for i, window in enumerate(windows))
    groups = [CacheGroup(name, window, (i,)) for i, (name, window) in enumerate(named)]
    for budget in (5, 16, 40):
        engine, most = Watched(Setup(named, seqs=1, budget=budget, spare=0)), 0
        request = request_of(0, TEXT[:70], 20)
        engine.engine.add(request)
        while engine.scheduler.has_work:
            engine.engine.step()
            most = max(most, engine.cache.pool.pages - 1 - engine.cache.pool.free_pages)
        bound = peak_pages(groups, 90, engine.limits.in_flight_tokens)
        assert most <= bound == engine.cache.pool.pages - 1
        assert request.output_ids == expected(request, named)
