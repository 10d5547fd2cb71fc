"""Owns the verifier: a graph that passes is SSA, well typed, and threads its states in order."""

from __future__ import annotations

import re
from dataclasses import replace

from kernelgen.core.errors import KernelgenError, quote
from kernelgen.ir.graph import Block, Graph, Node, Role, Value
from kernelgen.ir.op import Trait
from kernelgen.ir.parameters import parameters
from kernelgen.ir.types import Type
from kernelgen.spec.model import CacheSpec

_NAME = re.compile(r"[a-z][a-z0-9_.]{0,95}")


class GraphError(KernelgenError):
    """A graph that breaks a rule: a mistake of an architecture, or a damaged file."""


def verify_block(block: Block) -> None:
    """Raises `GraphError` naming block, node and rule; returns when every rule holds."""
    values = _values(block)
    ready = {v.name for v in block.values if not _computed(v, block)}
    live = {name for name in ready if values[name].role is Role.STATE}
    for node in block.nodes:
        where = f"block {block.name}: {node.name}"
        _named(node.name, where)
        for name in node.inputs:
            if name not in values:
                raise GraphError(f"reads {quote(name)}, which is not a value", where=where)
            if name not in ready:
                raise GraphError(f"reads {name} before it is computed", where=where)
        _typed(block, node, values, where)
        _threaded(node, values, live, where)
        for name in node.outputs:
            if name in ready:
                raise GraphError(f"computes {name} a second time", where=where)
            ready.add(name)
    for stream, name in block.results:
        where = f"block {block.name}"
        _named(stream, where)
        if name not in ready:
            raise GraphError(f"result {quote(name)} is never computed", where=where)


def verify_graph(graph: Graph) -> None:
    """The rules of every block, and what the blocks expect from each other."""
    if not graph.sequence:
        raise GraphError("places no block", where=f"graph {graph.name}")
    for block in graph.blocks:
        verify_block(block)
    _verify_outside(graph)
    _verify_streams(graph)
    _verify_caches(graph)
    try:
        parameters(graph)
    except ValueError as error:
        raise GraphError(str(error), where=f"graph {graph.name}") from error


def _values(block: Block) -> dict[str, Value]:
    where = f"block {block.name}"
    _named(block.name, where)
    values: dict[str, Value] = {}
    for value in block.values:
        _named(value.name, where)
        if value.name in values:
            raise GraphError(f"two values are called {value.name}", where=where)
        values[value.name] = value
    for name in (n for node in block.nodes for n in node.outputs):
        if name not in values:
            raise GraphError(f"computes {quote(name)}, which is not a value", where=where)
    for value in block.values:
        computed = value.name in block.producer
        if (value.role is Role.TEMP) != computed and value.role is not Role.STATE:
            told = "is computed" if computed else "is never computed"
            raise GraphError(f"{value.role.value} value {value.name} {told}", where=where)
    return values


def _computed(value: Value, block: Block) -> bool:
    return value.name in block.producer


def _named(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise GraphError(f"name {quote(name)}", where=where, allowed=_NAME.pattern)


def _typed(block: Block, node: Node, values: dict[str, Value], where: str) -> None:
    try:
        inferred = node.op.infer(block.input_types(node))
    except (ValueError, IndexError, TypeError) as error:
        raise GraphError(f"inputs do not fit: {error}", where=where) from error
    declared = tuple(values[name].type for name in node.outputs)
    if inferred != declared:
        raise GraphError(f"is {_types(declared)}, its op gives {_types(inferred)}", where=where)
    for name in node.outputs:
        is_state = name == node.outputs[-1] if node.op.has(Trait.SCAN) else True
        if (values[name].role is Role.STATE) != (node.op.has(Trait.STATE_WRITE) and is_state):
            raise GraphError(f"{name} is {values[name].role.value}", where=where)


def _threaded(node: Node, values: dict[str, Value], live: set[str], where: str) -> None:
    """Only the newest version of a state may be read: the older ones are gone in memory."""
    states = [name for name in node.inputs if values[name].role is Role.STATE]
    for name in states:
        if name not in live:
            raise GraphError(f"reads {name} after it was overwritten", where=where)
    if states and not node.op.has(Trait.STATE_READ | Trait.STATE_WRITE):
        raise GraphError(f"{node.op.kind} takes no state", where=where)
    if node.op.has(Trait.STATE_WRITE):
        live.difference_update(states)
        live.update(name for name in node.outputs if values[name].role is Role.STATE)


def _types(types: tuple[Type, ...]) -> str:
    return ", ".join(str(t) for t in types)


def _verify_outside(graph: Graph) -> None:
    tables = {t.name: t.type for t in graph.tables}
    step: dict[str, Type] = {}
    for block in graph.blocks:
        where = f"block {block.name}"
        for value in block.values:
            if value.role is Role.TABLE and tables.get(value.name) != value.type:
                raise GraphError(f"no table {value.name} of type {value.type}", where=where)
            if value.role is Role.STEP and step.setdefault(value.name, value.type) != value.type:
                raise GraphError(
                    f"step value {value.name} is {value.type} and {step[value.name]}", where=where
                )


def _verify_streams(graph: Graph) -> None:
    streams: dict[str, Type] = {}
    for i, placement in enumerate(graph.sequence):
        if not 0 <= placement.block < len(graph.blocks):
            raise GraphError(f"placement {i}: no block {placement.block}", where=graph.name)
        block = graph.blocks[placement.block]
        for value in block.values:
            if value.role is Role.STREAM and streams.get(value.name) != value.type:
                given = streams.get(value.name, "nothing")
                raise GraphError(
                    f"wants {value.name} as {value.type}, gets {given}",
                    where=f"placement {i}, block {block.name}",
                )
        streams.update({stream: block.value[name].type for stream, name in block.results})


def _verify_caches(graph: Graph) -> None:
    """Layers count up from 0; each state of one has a cache of its type, in their order."""
    layers = [p.layer for p in graph.sequence if p.layer is not None]
    if layers != list(range(len(layers))):
        raise GraphError("layers are not placed in the order 0, 1, 2, …", where=graph.name)
    caches: dict[int, list[Type]] = {}
    for layer, kept in graph.caches:
        caches.setdefault(layer, []).append(Type(kept.shape, kept.dtype))
    for placement in graph.sequence:
        block = graph.blocks[placement.block]
        states = [block.value[name].type for name in block.kept]
        expected = [] if placement.layer is None else caches.pop(placement.layer, [])
        if states != expected:
            raise GraphError(
                f"has states ({_types(tuple(states))}), caches ({_types(tuple(expected))})",
                where=f"layer {placement.layer}, block {block.name}",
            )
    if caches:
        raise GraphError(f"caches of layers {sorted(caches)} belong to nothing", where=graph.name)
    _verify_shared(graph)


def _verify_shared(graph: Graph) -> None:
    """Who shares a cache reads that of an earlier layer which keeps its own, of the same type and
    window."""
    caches = dict(graph.caches)
    for layer, cache in graph.caches:
        if not isinstance(cache, CacheSpec) or (owner := cache.kv_share_with) is None:
            continue
        if owner >= layer or owner not in caches:
            raise GraphError(
                f"shares the cache of layer {owner}",
                where=f"layer {layer}",
                allowed="an earlier layer with a cache",
            )
        if caches[owner] != replace(cache, kv_share_with=None):
            raise GraphError(
                f"reads {cache}, layer {owner} keeps {caches[owner]}",
                where=f"layer {layer}",
                allowed="the same heads, width, window and dtype, kept by that layer itself",
            )
