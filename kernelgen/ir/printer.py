"""Owns the text of a graph: one line a node, for people and for golden files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kernelgen.ir.graph import Block, Graph, Role

_OUTSIDE = (Role.STREAM, Role.STEP, Role.STATE, Role.TABLE, Role.WEIGHT)


def block_text(block: Block, title: str = "") -> str:
    """A block: what comes from outside by role, its nodes in order, what leaves it."""
    lines = [f"block {block.name}{title}"]
    for role in _OUTSIDE:
        for value in block.values:
            if value.role is role and value.name not in block.producer:
                lines.append(f"  {role.value:<7}{value.name}: {value.type}")
    width = max((len(", ".join(n.outputs)) for n in block.nodes), default=0)
    for node in block.nodes:
        attributes = node.op.attributes()
        op = f"{node.op.kind}[{attributes}]" if attributes else node.op.kind
        types = ", ".join(str(block.value[name].type) for name in node.outputs)
        outputs = ", ".join(node.outputs)
        lines.append(f"  {outputs:<{width}} = {op}({', '.join(node.inputs)}) : {types}")
    leaves = ", ".join(f"{stream} = {name}" for stream, name in block.results)
    return "\n".join([*lines, f"  return {leaves}"])


def graph_text(graph: Graph) -> str:
    """All blocks, each with the layers where it is placed, then tables and caches."""
    counts = Counter(p.block for p in graph.sequence)
    parts = [f"graph {graph.name}: {len(graph.blocks)} blocks, {len(graph.sequence)} placements"]
    for i, block in enumerate(graph.blocks):
        layers = [p.layer for p in graph.sequence if p.block == i and p.layer is not None]
        where = f" ×{counts[i]} (layers {_ranges(layers)})" if layers else ""
        parts.append(block_text(block, where))
    for table in graph.tables:
        parts.append(f"table {table.name}: {table.type}, scale {table.scale!r}")
    by_cache: dict[str, dict[int, None]] = {}
    for layer, cache in graph.caches:
        of = "full" if cache.window is None else f"window {cache.window}"
        of = "each request" if cache.per_request else of
        text = f"{cache.dtype}[{', '.join(map(str, cache.shape))}] {of}"
        by_cache.setdefault(text, {})[layer] = None
    parts += [f"cache {text}: layers {_ranges(layers)}" for text, layers in by_cache.items()]
    return "\n\n".join(parts) + "\n"


def _ranges(numbers: Iterable[int]) -> str:
    """`0–2, 5`"""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)
