"""Owns cutting a part out of a block: the sub-graph that one kernel computes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from kernelgen.ir.graph import Block, Role


def sub_block(block: Block, name: str, nodes: Collection[int], outputs: Sequence[str]) -> Block:
    """The nodes with these numbers as a block of their own.

    What other nodes of `block` computed comes in as a stream value; `outputs` are the results,
    each under its own name. The nodes keep their order.
    """
    chosen = [node for i, node in enumerate(block.nodes) if i in nodes]
    inside = {out for node in chosen for out in node.outputs}
    used = inside | {name for node in chosen for name in node.inputs}
    values = tuple(
        replace(v, role=Role.STREAM) if v.role is Role.TEMP and v.name not in inside else v
        for v in block.values
        if v.name in used
    )
    return Block(name, values, tuple(chosen), tuple((out, out) for out in outputs))
