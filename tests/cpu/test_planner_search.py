"""The search finds the cheapest way to cut a block, and every region that is legal."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_toys import ARCHITECTURES, SMALL, RandomFamily, blocks, decoder, tiny_graph

from kernelgen.codegen.families import catalogue
from kernelgen.core.errors import UnsupportedError
from kernelgen.hw import parse_target
from kernelgen.ir.graph import Block
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Match
from kernelgen.planner.network import Network, Region, bits
from kernelgen.planner.search import BlockSearch

SIZES = Sizes(tokens=1, rows=1, context=16)
CPU = parse_target("cpu")


def partitions(left: list[int]) -> list[list[int]]:
    """All ways to cut a list into groups, each group a mask."""
    if not left:
        return [[]]
    found = []
    for rest in partitions(left[1:]):
        found.append([1 << left[0], *rest])
        for i, group in enumerate(rest):
            found.append([*rest[:i], group | 1 << left[0], *rest[i + 1 :]])
    return found


def runs_in_some_order(network: Network, groups: list[int]) -> bool:
    """Whether the groups can be executed one after the other."""
    done, left = 0, list(groups)
    while left:
        ready = [g for g in left if not network.needs(g) & ~done]
        if not ready:
            return False
        for group in ready:
            done |= group
            left.remove(group)
    return True


@given(blocks(), st.integers(0, 10_000))
@settings(max_examples=120, deadline=None)
def test_search_equals_brute_force(block: Block, seed: int) -> None:
    family = RandomFamily(seed)
    solution = BlockSearch(block, (family,), "decode").solve(SIZES, CPU)
    network = Network(block)
    legal = family.taken(network)
    costs = [
        sum(family.us(g) for g in groups)
        for groups in partitions(list(range(len(network.nodes))))
        if all(g in legal for g in groups) and runs_in_some_order(network, groups)
    ]
    assert solution.us == pytest.approx(min(costs))
    masks = [cut.match.region.mask for cut in solution.cuts]
    done = 0
    for mask in masks:  # the order itself is executable and covers every op once
        assert not mask & done and not network.needs(mask) & ~done
        done |= mask
    assert done == network.full


def convex_sets(network: Network) -> set[int]:
    """Every convex set of nodes: what one set of finished nodes has more than another."""
    ideals, todo = {0}, [0]
    while todo:
        done = todo.pop()
        for i in range(len(network.nodes)):
            bigger = done | 1 << i
            if not done >> i & 1 and not network.before[i] & ~done and bigger not in ideals:
                ideals.add(bigger)
                todo.append(bigger)
    return {a & ~b for a, b in product(ideals, ideals) if not b & ~a} - {0}


def hangs_together(network: Network, mask: int) -> bool:
    """Whether neighbours reach every node of the set from its first."""
    reached = todo = mask & -mask
    while todo:
        near = 0
        for i in bits(todo):
            near |= network.neighbours[i]
        todo = near & mask & ~reached
        reached |= todo
    return reached == mask


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("phase", ["decode", "mixed"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_legal_regions_are_closed_under_growth(name: str, phase: str, target: str) -> None:
    families = catalogue(parse_target(target))
    graph = tiny_graph(name)
    for block in {graph.sequence[1].block, graph.sequence[-1].block}:
        search = BlockSearch(graph.blocks[block], families, phase)
        network = search.network
        legal = {
            mask
            for mask in convex_sets(network)
            if hangs_together(network, mask)
            and any(isinstance(f.match(Region(network, mask), phase), Match) for f in families)
        }
        assert set(search.matches) == legal


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_unfused_is_one_op_a_kernel(name: str) -> None:
    graph = tiny_graph(name)
    for block in graph.blocks:
        for target in ("cpu", "sm_90"):
            device = parse_target(target)
            search = BlockSearch(block, catalogue(device), "decode", fusion=False)
            solution = search.solve(SIZES, device)
            assert [len(c.match.region.nodes) for c in solution.cuts] == [1] * len(
                search.network.nodes
            )


def test_an_op_without_a_kernel_is_named() -> None:
    graph = decoder(SMALL)
    rows_only = tuple(f for f in catalogue(CPU) if f.name == "rows")
    with pytest.raises(UnsupportedError, match=r"linear \(attn\.q\)"):
        BlockSearch(graph.blocks[1], rows_only, "decode")


def test_reading_a_state_comes_before_overwriting_it() -> None:
    """A region order that follows data alone could overwrite what another op still reads."""
    from kernelgen.core.dtypes import FLOAT32, INT32
    from kernelgen.ir.graph import BlockBuilder, Role
    from kernelgen.ir.types import Dim, Type
    from kernelgen.ops import Attention, CacheWrite

    builder = BlockBuilder("late_insert")
    heads = Type((Dim.T, 2, 4), FLOAT32)
    q, k = (builder.declare(n, heads, Role.STREAM) for n in ("q", "k"))
    rows = builder.declare("rows", Type((Dim.T,), INT32), Role.STEP)
    state = builder.declare("kv", Type((2, 4), FLOAT32), Role.STATE)
    out = builder.apply("attn", Attention(1.0, None, False, FLOAT32), q, state, rows)
    builder.apply("insert", CacheWrite(), state, k, k, rows)
    network = Network(builder.build([("q", out)]))
    assert network.before[1] == 0b01
