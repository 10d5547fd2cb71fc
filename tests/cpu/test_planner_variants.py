"""Variant texts and names: equal exactly where one compiled kernel serves both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_toys import MIXED, SMALL, RandomFamily, blocks, decoder

from kernelgen.codegen.families import catalogue
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.hw import parse_target
from kernelgen.ir.expr import arg
from kernelgen.ir.graph import Block, Node, Role, Value
from kernelgen.ir.op import Trait
from kernelgen.ops import Attention, Pointwise, View
from kernelgen.planner.family import Match
from kernelgen.planner.naming import KernelNames
from kernelgen.planner.network import Network, Region
from kernelgen.planner.planner import Planner
from kernelgen.planner.search import BlockSearch
from kernelgen.planner.variant import variant_text


def renamed(block: Block, name: Callable[[str], str]) -> Block:
    """The same computation with other names for everything."""
    return Block(
        name(block.name),
        tuple(replace(v, name=name(v.name)) for v in block.values),
        tuple(
            Node(name(n.name), n.op, tuple(map(name, n.inputs)), tuple(map(name, n.outputs)))
            for n in block.nodes
        ),
        tuple((stream, name(value)) for stream, value in block.results),
    )


@given(blocks(), st.data())
@settings(max_examples=60, deadline=None)
def test_names_do_not_matter(block: Block, data: st.DataObject) -> None:
    network = Network(block)
    other = Network(renamed(block, lambda n: f"z{mirrored(n)}"))
    mask = data.draw(st.integers(1, network.full))
    assert variant_text(Region(network, mask)) == variant_text(Region(other, mask))


def mirrored(name: str) -> str:
    """Another name in another order of the alphabet."""
    return name[::-1] + "q"


def layer() -> Block:
    return decoder(SMALL).blocks[1]


def with_node(block: Block, name: str, node: Node) -> Block:
    return replace(block, nodes=tuple(node if n.name == name else n for n in block.nodes))


def with_value(block: Block, name: str, value: Value) -> Block:
    return replace(block, values=tuple(value if v.name == name else v for v in block.values))


def _other_expression(block: Block) -> Block:
    node = block.nodes[block.producer["mlp.residual"]]
    return with_node(block, node.name, replace(node, op=Pointwise(arg(0) - arg(1), BFLOAT16)))


def _other_type(block: Block) -> Block:
    value = block.value["mlp.gate.weight"]
    return with_value(block, value.name, replace(value, type=replace(value.type, dtype=BFLOAT16)))


def _other_role(block: Block) -> Block:
    value = block.value["x"]
    return with_value(block, "x", replace(value, role=Role.WEIGHT))


def _other_window(block: Block) -> Block:
    node = next(n for n in block.nodes if n.op.has(Trait.ATTENTION))
    assert isinstance(node.op, Attention)
    return with_node(block, node.name, replace(node, op=replace(node.op, window=7)))


def _other_offset(block: Block) -> Block:
    node = next(n for n in block.nodes if n.name == "attn.flat")
    value = block.value["attn.flat"]
    wide = replace(value.type, shape=(value.type.shape[0], 8))
    changed = with_value(block, value.name, replace(value, type=wide))
    return with_node(changed, node.name, replace(node, op=View((8,), 8)))


def _other_output(block: Block) -> Block:
    return replace(block, results=(*block.results, ("y", "attn.o")))


def _other_operands(block: Block) -> Block:
    node = block.nodes[block.producer["mlp.act"]]
    return with_node(block, node.name, replace(node, inputs=node.inputs[::-1]))


@pytest.mark.parametrize(
    "change",
    [
        _other_expression,
        _other_type,
        _other_role,
        _other_window,
        _other_offset,
        _other_output,
        _other_operands,
    ],
)
def test_what_is_compiled_in_matters(change: Callable[[Block], Block]) -> None:
    from kernelgen.core.dtypes import FLOAT32

    block = layer()
    if change is _other_type:
        value = block.value["mlp.gate.weight"]
        wide = replace(value, type=replace(value.type, dtype=FLOAT32))
        block = with_value(block, value.name, wide)
    before = Network(block)
    after = Network(change(block))
    texts = [variant_text(Region(n, n.full)) for n in (before, after)]
    assert texts[0] != texts[1]


def test_both_ways_of_sharing_a_value_differ() -> None:
    """Two inputs that are one value, and two values of one type, are different kernels."""
    block = layer()
    node = block.nodes[block.producer["mlp.residual"]]
    twice = with_node(block, node.name, replace(node, inputs=(node.inputs[0], node.inputs[0])))
    masks = [1 << Network(b).producer["mlp.residual"] for b in (block, twice)]
    one, other = (
        variant_text(Region(Network(b), m)) for b, m in zip((block, twice), masks, strict=True)
    )
    assert one != other


@given(blocks(), st.integers(0, 500))
@settings(max_examples=40, deadline=None)
def test_one_name_for_each_variant(block: Block, seed: int) -> None:
    names = KernelNames()
    search = BlockSearch(block, (RandomFamily(seed),), "decode")
    given_names: dict[str, str] = {}
    for match in (m for found in search.matches.values() for m in found):
        name = names.name(match)
        assert given_names.setdefault(name, match.variant) == match.variant
        assert name.isidentifier() and len(name) <= 52
    assert len(given_names) == len({m.variant for f in search.matches.values() for m in f})


def test_layers_that_differ_in_a_rope_table_share_their_kernels() -> None:
    graph = decoder(MIXED)
    device = parse_target("sm_90")
    plan = Planner(graph, device, "sm_90", catalogue(device)).plan("decode", 1)
    by_layer: dict[int | None, list[str]] = {}
    for launch in plan.launches:
        by_layer.setdefault(launch.layer, []).append(launch.kernel.name)
    assert by_layer[0] == by_layer[3]  # both see everything, with bases 1e4 and 5e5
    assert by_layer[1] != by_layer[2]  # both in a window, layer 2 does not rotate


def test_a_name_belongs_to_one_backend() -> None:
    names = KernelNames()
    families = (RandomFamily(1, name="a"), RandomFamily(1, name="b"))
    region = Region(Network(layer()), 1)
    found = [f.match(region, "decode") for f in families]
    texts = {names.name(m) for m in found if isinstance(m, Match)}
    assert len(texts) == 2
