"""Owns giving a graph a cache of 8-bit floats: states, their scales, and who reads both."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.core.dtypes import FLOAT8, FLOAT32
from kernelgen.ir.graph import Block, Graph, Node, Role, Value
from kernelgen.ir.types import Type
from kernelgen.ops import Attention, CacheWrite

SCALES = "kv_scales"
"""last word of the parameter that holds the scales of a layer's keys and values"""


def with_float8_cache(graph: Graph) -> Graph:
    """The graph whose full-attention layers keep keys and values as e4m3 under a scale each.

    Layers with a window stay as they are: their cache is small, and its errors count most. A layer
    gets the parameter `layers.<i>.attn.kv_scales`, `float32 [2]`.
    """
    narrowed = {i: _narrowed(block) for i, block in enumerate(graph.blocks) if _is_full(block)}
    layers = {p.layer for p in graph.sequence if p.block in narrowed}
    return replace(
        graph,
        blocks=tuple(narrowed.get(i, block) for i, block in enumerate(graph.blocks)),
        caches=tuple(
            (layer, replace(spec, dtype=FLOAT8) if layer in layers else spec)
            for layer, spec in graph.caches
        ),
    )


def without_scales(graph: Graph) -> Graph:
    """The same graph as far as a checkpoint's own tensors are concerned."""
    blocks = tuple(
        replace(b, values=tuple(v for v in b.values if not v.name.endswith(f".{SCALES}")))
        for b in graph.blocks
    )
    return replace(graph, blocks=blocks)


def _is_full(block: Block) -> bool:
    attentions = [n.op for n in block.nodes if isinstance(n.op, Attention)]
    return bool(attentions) and all(op.window is None for op in attentions)


def _narrowed(block: Block) -> Block:
    values, nodes = list[Value](), list[Node]()
    for value in block.values:
        state = value.role is Role.STATE
        values.append(replace(value, type=Type(value.type.shape, FLOAT8)) if state else value)
    for node in block.nodes:
        op, scales = node.op, f"{node.name.split('.')[0]}.{SCALES}"
        if isinstance(op, CacheWrite | Attention):
            node = replace(node, op=replace(op, scaled=True), inputs=(*node.inputs, scales))
            made = Value(scales, Type((2,), FLOAT32), Role.WEIGHT)
            if made not in values:
                values.append(made)
        nodes.append(node)
    return replace(block, values=tuple(values), nodes=tuple(nodes))
