"""Owns how weights are cut among the ranks of a tensor-parallel group, read off the graph."""

from __future__ import annotations

from collections.abc import Mapping

from kernelgen.codegen.cut_axes import Cut, Refused
from kernelgen.codegen.cut_walk import Walk
from kernelgen.ir.graph import Block, Graph, Role


def weight_cuts(graph: Graph) -> dict[str, Cut]:
    """Full name of a weight → its cut; those that are left out every rank holds whole.

    A product makes part of its outputs on each rank where all that reads them can do with parts,
    up to a product that sums over them. What no rule here knows is never cut.
    """
    streams = {v.name for b in graph.blocks for v in b.values if v.role is Role.STREAM}
    of_block = [_block_cuts(block, streams) for block in graph.blocks]
    found: dict[str, Cut | None] = {}
    for placement in graph.sequence:
        block, cuts = graph.blocks[placement.block], of_block[placement.block]
        for value in (v for v in block.values if v.role is Role.WEIGHT):
            name, cut = graph.weight_name(value, placement.layer), cuts.get(value.name)
            if found.setdefault(name, cut) != cut:
                found[name] = None
    return {name: cut for name, cut in found.items() if cut is not None}


def _block_cuts(block: Block, streams: set[str]) -> Mapping[str, Cut]:
    """Everything is taken for cut; what turns out not to be is kept whole, and all begins anew."""
    whole: set[int] = set()
    while True:
        walk = Walk(block, streams, whole)
        try:
            walk.run()
        except Refused as refused:
            assert refused.makers - whole, "each time one product more is whole"
            whole |= refused.makers
        else:
            return dict(walk.cuts())
