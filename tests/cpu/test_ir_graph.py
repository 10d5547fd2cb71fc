"""Blocks: builder, verifier rules one by one, text, JSON form, parameters, sub-graphs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kernelgen.core.dtypes import BFLOAT16, FLOAT32, INT32
from kernelgen.core.errors import KernelgenError
from kernelgen.ir.codec import block_from_json, block_to_json, op_from_json, op_to_json
from kernelgen.ir.expr import arg, call
from kernelgen.ir.graph import Block, BlockBuilder, Graph, Node, Placement, Role, Value
from kernelgen.ir.parameters import parameters
from kernelgen.ir.printer import block_text, graph_text
from kernelgen.ir.subgraph import sub_block
from kernelgen.ir.types import Dim, Type
from kernelgen.ir.verify import GraphError, verify_block, verify_graph
from kernelgen.ops import Attention, CacheWrite, Embed, Linear, Pointwise, RowReduce, View
from kernelgen.ops.registry import op_kinds
from kernelgen.spec.model import CacheSpec

ROWS = Type((Dim.T,), INT32)
X = Type((Dim.T, 8), FLOAT32)


def first() -> Block:
    b = BlockBuilder("first")
    ids = b.declare("token_ids", ROWS, Role.STEP)
    table = b.declare("table", Type((11, 8), BFLOAT16), Role.WEIGHT)
    return b.build([("x", b.apply("embed", Embed(FLOAT32), ids, table))])


def body() -> Block:
    b = BlockBuilder("body")
    x = b.declare("x", X, Role.STREAM)
    rows = b.declare("rows", ROWS, Role.STEP)
    state = b.declare("kv", Type((2, 4), FLOAT32), Role.STATE)
    weight = b.declare("q.weight", Type((8, 8), BFLOAT16), Role.WEIGHT)
    stat = b.apply("stat", RowReduce("mean", arg(0) * arg(0)), x)
    normed = b.apply("norm", Pointwise(arg(0) * call("rsqrt", arg(1)), FLOAT32), x, stat)
    q = b.apply("heads", View((2, 4)), b.apply("q", Linear(FLOAT32), normed, weight))
    written = b.apply("cache", CacheWrite(), state, q, q, rows)
    out = b.apply("attn", Attention(0.5, None, False, FLOAT32), q, written, rows)
    flat = b.apply("flat", View((8,)), out)
    return b.build([("x", b.apply("sum", Pointwise(arg(0) + arg(1), FLOAT32), x, flat))])


def model() -> Graph:
    cache = CacheSpec(2, 4, None, FLOAT32)
    return Graph(
        "model",
        (first(), body()),
        (Placement(0, None), Placement(1, 0), Placement(1, 1)),
        caches=((0, cache), (1, cache)),
    )


def test_good_graphs_pass() -> None:
    verify_block(body())
    verify_graph(model())


def swapped(block: Block, i: int, **changes) -> Block:
    nodes = list(block.nodes)
    nodes[i] = replace(nodes[i], **changes)
    return replace(block, nodes=tuple(nodes))


def revalued(block: Block, name: str, **changes) -> Block:
    values = tuple(replace(v, **changes) if v.name == name else v for v in block.values)
    return replace(block, values=values)


B = body()
FLAT = Node("again", View((8,)), ("attn",), ("flat",))
STALE = Node("late", Attention(0.5, None, False, FLOAT32), ("heads", "kv", "rows"), ("attn",))
BROKEN = {
    "not a value": (swapped(B, 0, inputs=("nothing",)), "reads 'nothing', which is not a value"),
    "out of order": (replace(B, nodes=B.nodes[::-1]), "sum: reads flat before it is computed"),
    "computed twice": (replace(B, nodes=(*B.nodes, FLAT)), "computes flat a second time"),
    "wrong type": (
        revalued(B, "norm", type=Type((Dim.T, 9), FLOAT32)),
        "norm: is float32[T, 9], its op gives float32[T, 8]",
    ),
    "wrong dtype": (revalued(B, "norm", type=Type((Dim.T, 8), BFLOAT16)), "is bfloat16[T, 8]"),
    "inputs do not fit": (
        revalued(B, "q.weight", type=Type((8, 7), BFLOAT16)),
        "q: inputs do not fit: linear",
    ),
    "a temporary from nowhere": (revalued(B, "x", role=Role.TEMP), "x is never computed"),
    "a computed weight": (revalued(B, "norm", role=Role.WEIGHT), "weight value norm is computed"),
    "a state that is none": (revalued(B, "cache", role=Role.TEMP), "cache is temp"),
    "an old state": (
        swapped(B, 5, inputs=("heads", "kv", "rows")),
        "attn: reads kv after it was overwritten",
    ),
    "two of one name": (replace(B, values=(*B.values, B.values[0])), "two values are called x"),
    "result from nowhere": (replace(B, results=(("x", "y"),)), "result 'y' is never computed"),
    "bad stream name": (replace(B, results=(("x y", "sum"),)), "name 'x y'"),
    "bad node name": (swapped(B, 0, name="a;b"), "name 'a;b'"),
    "bad value name": (
        replace(B, values=(*B.values, Value("Q\n", X, Role.STREAM))),
        r"name 'Q\n'",
    ),
    "bad block name": (replace(B, name=""), "name ''"),
    "outputs unknown": (swapped(B, 0, outputs=("gone",)), "computes 'gone', which is not a value"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_blocks_are_refused(case: str) -> None:
    block, message = BROKEN[case]
    with pytest.raises(GraphError) as raised:
        verify_block(block)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def wide(block: Block) -> Block:
    return revalued(block, "x", type=Type((Dim.T, 9), FLOAT32))


G = model()
CACHE = CacheSpec(2, 4, None, FLOAT32)
BROKEN_GRAPHS = {
    "empty": (replace(G, sequence=()), "places no block"),
    "no such block": (replace(G, sequence=(Placement(7, None),)), "no block 7"),
    "stream missing": (replace(G, sequence=G.sequence[1:]), "wants x as float32[T, 8], gets noth"),
    "layers out of order": (
        replace(G, sequence=(G.sequence[0], Placement(1, 1), Placement(1, 0))),
        "not placed in the order",
    ),
    "cache missing": (replace(G, caches=G.caches[:1]), "layer 1, block body"),
    "cache of nothing": (replace(G, caches=(*G.caches, (5, CACHE))), "caches of layers [5]"),
    "cache twice": (
        replace(G, caches=(*G.caches, (0, CACHE))),
        "has states (float32[2, 4]), caches (float32[2, 4], float32[2, 4])",
    ),
    "cache of another shape": (
        replace(G, caches=((0, CACHE), (1, replace(CACHE, kv_heads=1)))),
        "has states (float32[2, 4]), caches (float32[1, 4])",
    ),
    "table unknown": (
        replace(
            G,
            blocks=(
                G.blocks[0],
                replace(B, values=(*B.values, Value("rope.0", X, Role.TABLE))),
            ),
        ),
        "no table rope.0",
    ),
    "step value of two types": (
        replace(
            G,
            blocks=(
                G.blocks[0],
                replace(B, values=(*B.values, Value("token_ids", X, Role.STEP))),
            ),
        ),
        "step value token_ids is",
    ),
}


@pytest.mark.parametrize("case", BROKEN_GRAPHS)
def test_broken_graphs_are_refused(case: str) -> None:
    graph, message = BROKEN_GRAPHS[case]
    with pytest.raises(GraphError) as raised:
        verify_graph(graph)
    assert message in str(raised.value)


def test_one_weight_used_with_two_types_is_refused() -> None:
    b = BlockBuilder("tail")
    x = b.declare("x", X, Role.STREAM)
    b.apply("head", Linear(FLOAT32), x, b.declare("table", Type((11, 8), FLOAT32), Role.WEIGHT))
    graph = replace(
        G,
        blocks=(*G.blocks, b.build([("logits", "head")])),
        sequence=(*G.sequence, Placement(2, None)),
    )
    with pytest.raises(GraphError, match="table is used as bfloat16"):
        verify_graph(graph)


def test_builder_refuses_what_cannot_be() -> None:
    b = BlockBuilder("b")
    x = b.declare("x", X, Role.STREAM)
    assert b.declare("x", X, Role.STREAM) == x
    with pytest.raises(ValueError, match="declared twice"):
        b.declare("x", ROWS, Role.STREAM)
    b.apply("y", Pointwise(arg(0), FLOAT32), x)
    with pytest.raises(ValueError, match="two values are called y"):
        b.apply("y", Pointwise(arg(0), FLOAT32), x)
    weight = b.declare("w", Type((4, 9), FLOAT32), Role.WEIGHT)
    with pytest.raises(ValueError, match="linear"):
        b.apply("z", Linear(FLOAT32), x, weight)


def test_parameters_are_listed_once_by_full_name() -> None:
    found = {p.name: (p.template, str(p.type)) for p in parameters(G)}
    assert found == {
        "table": ("table", "bfloat16[11, 8]"),
        "layers.0.q.weight": ("layers.{layer}.q.weight", "bfloat16[8, 8]"),
        "layers.1.q.weight": ("layers.{layer}.q.weight", "bfloat16[8, 8]"),
    }


TEXT = """\
block body
  stream x: float32[T, 8]
  step   rows: int32[T]
  state  kv: float32[2, 4]
  weight q.weight: bfloat16[8, 8]
  stat  = row_reduce[mean mul(a0, a0)](x) : float32[T, 1]
  norm  = pointwise[mul(a0, rsqrt(a1))](x, stat) : float32[T, 8]
  q     = linear(norm, q.weight) : float32[T, 8]
  heads = view(q) : float32[T, 2, 4]
  cache = cache_write(kv, heads, heads, rows) : float32[2, 4]
  attn  = attention[scale=0.5 window=None sinks=False](heads, cache, rows) : float32[T, 2, 4]
  flat  = view(attn) : float32[T, 8]
  sum   = pointwise[add(a0, a1)](x, flat) : float32[T, 8]
  return x = sum"""


def test_text_of_a_block() -> None:
    assert block_text(B) == TEXT


def test_text_of_a_graph_names_layers_and_caches() -> None:
    text = graph_text(G)
    assert "graph model: 2 blocks, 3 placements" in text
    assert "block body ×2 (layers 0–1)" in text
    assert "cache float32[2, 4] full: layers 0–1" in text


def test_json_form_of_a_block_is_exact() -> None:
    data = json.loads(json.dumps(block_to_json(B)))
    assert block_from_json(data, op_kinds()) == B


HOSTILE = {
    "no object": lambda d: [],
    "no nodes": lambda d: {k: v for k, v in d.items() if k != "nodes"},
    "unknown op": lambda d: _patch(d, "nodes", 0, op={"kind": "system"}),
    "extra attribute": lambda d: _patch(
        d, "nodes", 3, op={"kind": "view", "row": [2, 4], "offset": 0, "x": 1}
    ),
    "attribute of another type": lambda d: _patch(
        d, "nodes", 3, op={"kind": "view", "row": ["2", 4], "offset": 0}
    ),
    "flag for a number": lambda d: _patch(
        d, "nodes", 3, op={"kind": "view", "row": [2, 4], "offset": True}
    ),
    "unknown function": lambda d: _patch(
        d, "nodes", 1, op={"kind": "pointwise", "expr": ["exec", ["arg", 0]], "dtype": "float32"}
    ),
    "unknown dtype": lambda d: _patch(d, "values", 0, dtype="float128"),
    "negative size": lambda d: _patch(d, "values", 0, shape=["T", -8]),
    "unknown size": lambda d: _patch(d, "values", 0, shape=["N", 8]),
    "unknown role": lambda d: _patch(d, "values", 0, role="secret"),
    "name of another type": lambda d: _patch(d, "nodes", 0, name=7),
    "code for a name": lambda d: _patch(d, "nodes", 0, name='"); system("'),
    "breaks a rule": lambda d: _patch(d, "nodes", 0, inputs=["sum"]),
}


def _patch(data, key: str, index: int, **changes):
    items = [dict(item) for item in data[key]]
    items[index].update(changes)
    return {**data, key: items}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_json_is_refused_with_one_line(case: str) -> None:
    data = HOSTILE[case](block_to_json(B))
    with pytest.raises(KernelgenError) as raised:
        block_from_json(data, op_kinds())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("op", [n.op for n in B.nodes], ids=lambda op: op.kind)
def test_json_form_of_ops(op) -> None:
    assert op_from_json(json.loads(json.dumps(op_to_json(op))), op_kinds()) == op


def test_sub_block_takes_what_others_computed_from_outside() -> None:
    names = [n.name for n in B.nodes]
    cut = sub_block(B, "part", {names.index("attn"), names.index("flat")}, ["flat"])
    verify_block(cut)
    assert [n.name for n in cut.nodes] == ["attn", "flat"]
    roles = {v.name: v.role for v in cut.values}
    assert roles["heads"] is Role.STREAM and roles["cache"] is Role.STATE
    assert "q.weight" not in roles
    assert block_from_json(block_to_json(cut), op_kinds()) == cut
