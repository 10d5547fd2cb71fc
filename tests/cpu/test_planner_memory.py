"""Buffers of a plan never overwrite what is still to be read."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_toys import (
    ARCHITECTURES,
    EIGHT_B,
    RandomFamily,
    blocks,
    chain,
    decoder,
    tiny_graph,
)

from kernelgen.codegen.families import catalogue
from kernelgen.hw import parse_target
from kernelgen.ir.graph import Block, Graph, Role
from kernelgen.planner.memory import ALIGNMENT, Lifetime, aligned, place
from kernelgen.planner.plan import SCRATCH, Launch, Operand, Plan
from kernelgen.planner.planner import Planner

LIVES = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=14
)


@given(LIVES, st.lists(st.tuples(st.integers(0, 8), st.integers(0, 300)), max_size=3))
@settings(max_examples=200, deadline=None)
def test_buffers_alive_together_do_not_overlap(
    lives: list[tuple[int, int, int]], fixed: list[tuple[int, int]]
) -> None:
    buffers = [Lifetime(f"b{i}", n, a, a + d) for i, (n, a, d) in enumerate(lives)]
    seats = [(at * 512, Lifetime(f"s{i}", n, 2, 6)) for i, (at, n) in enumerate(fixed)]
    layout = place(buffers, seats)
    assert set(layout.offsets) == {b.name for b in buffers}
    placed = [(layout.offsets[b.name], b) for b in buffers]
    for i, (at, a) in enumerate(placed):
        assert at % ALIGNMENT == 0 and at + a.bytes <= layout.bytes
        for other, b in [*placed[:i], *seats]:
            apart = a.last < b.first or b.last < a.first
            assert apart or at + aligned(a.bytes) <= other or other + aligned(b.bytes) <= at


def test_workspace_is_no_larger_than_what_lives_at_one_time_when_all_is_equal() -> None:
    buffers = [Lifetime(f"b{i}", 100, i, i + 1) for i in range(20)]
    assert place(buffers).bytes == 2 * aligned(100)


@dataclass
class Memory:
    """Which value each byte of the workspace belongs to, as launches write it."""

    plan: Plan
    owners: dict[tuple[int, int], object] = field(default_factory=dict)

    def write(self, at: int, size: int, owner: object) -> None:
        assert at % ALIGNMENT == 0 and at + size <= self.plan.workspace_bytes
        self.owners = {
            span: who for span, who in self.owners.items() if span[1] <= at or at + size <= span[0]
        }
        self.owners[at, at + size] = owner

    def read(self, at: int, size: int, owner: object, where: str) -> None:
        assert self.owners.get((at, at + size)) == owner, where


def run(plan: Plan) -> None:
    """Walk over all launches: every buffer read still holds the value that was meant."""
    memory, streams = Memory(plan), dict[str, object]()
    launches = iter(plan.launches)
    last = len(plan.graph.sequence) - 1
    for number, placement in enumerate(plan.graph.sequence):
        block = plan.graph.blocks[placement.block]
        access = {v.name: v.name for v in block.values}
        left = {n.name for n in block.nodes if n.op.kind != "view"}
        while left:
            launch = next(launches)
            access = {n: a.base for n, a in launch.kernel.match.region.network.access.items()}
            assert launch.layer == placement.layer
            step(memory, launch, block, number, streams, last=number == last)
            left -= set(launch.kernel.ops)
        found = {s: (number, access[v]) for s, v in block.results}
        streams |= {
            s: streams.get(v, (n, v)) if block.value[v].role is Role.STREAM else (n, v)
            for s, (n, v) in found.items()
        }
    assert next(launches, None) is None


def step(
    memory: Memory,
    launch: Launch,
    block: Block,
    number: int,
    streams: dict[str, object],
    *,
    last: bool,
) -> None:
    """One launch: check what it reads, then note what it writes."""
    region, sizes = launch.kernel.match.region, memory.plan.sizes.capacity
    results = {region.network.access[v].base for _, v in block.results}
    operands = dict(zip(launch.kernel.signature, launch.operands, strict=True))
    for name in region.inputs:
        value, operand = region.value(name), operands[name]
        if value.role not in (Role.STREAM, Role.TEMP) or operand.kind == "bound":
            assert operand.kind in ("weight", "state", "step", "bound")
            continue
        owner = streams.get(name, "nobody") if value.role is Role.STREAM else (number, name)
        if owner != "nobody":  # a stream that nobody made: the graph of one block alone
            where = f"{launch.kernel.name} reads {name} in placement {number}"
            memory.read(operand.offset_bytes, value.type.size_bytes(sizes), owner, where)
    for name in region.outputs:
        if region.value(name).role is Role.STATE:
            continue
        operand = operands[name]
        if operand.kind == "bound":
            assert last and name in results
            continue
        size = region.value(name).type.size_bytes(sizes)
        memory.write(operand.offset_bytes, size, (number, name))
    write_scratch(memory, launch, operands.get(SCRATCH))


def write_scratch(memory: Memory, launch: Launch, operand: Operand | None) -> None:
    """Scratch is the launch's own: it must not touch anything that the launch reads or writes."""
    if operand is None:
        return
    size = launch.price.scratch_bytes
    region, sizes = launch.kernel.match.region, memory.plan.sizes.capacity
    for name, other in zip(launch.kernel.signature, launch.operands, strict=True):
        if other.kind == "buffer" and name != SCRATCH:
            start, length = other.offset_bytes, region.value(name).type.size_bytes(sizes)
            apart = start + length <= operand.offset_bytes
            assert apart or operand.offset_bytes + size <= start, f"{name} lies in scratch"
    memory.write(operand.offset_bytes, size, ("scratch", launch.kernel.name))


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_plans_of_architectures_keep_their_values(name: str, target: str, fusion: bool) -> None:
    device = parse_target(target)
    planner = Planner(tiny_graph(name), device, target, catalogue(device), fusion)
    for phase, size in (("decode", 1), ("decode", 24), ("mixed", 128)):
        run(planner.plan(phase, size))


@given(blocks(most=5), st.integers(0, 1000), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_plans_of_random_blocks_keep_their_values(block: Block, seed: int, times: int) -> None:
    device = parse_target("cpu")
    graph = chain(block, times)
    run(Planner(graph, device, "cpu", (RandomFamily(seed),)).plan("decode", 3))


def test_a_deep_model_needs_no_more_workspace_than_a_shallow_one() -> None:
    graph = decoder(EIGHT_B)
    shallow = Graph(graph.name, graph.blocks, (*graph.sequence[:3], graph.sequence[-1]))
    device = parse_target("sm_90")
    sizes = {
        Planner(g, device, "sm_90", catalogue(device)).plan("mixed", 512).workspace_bytes
        for g in (graph, shallow)
    }
    assert len(sizes) == 1
