"""Owns giving weights of a graph other formats: blocks are split where their layers come apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from kernelgen.core.dtypes import DType
from kernelgen.core.errors import UnsupportedError
from kernelgen.ir.graph import Block, Graph, Placement, Role
from kernelgen.ir.op import Trait

_PRODUCTS = {2: Trait.MATMUL, 3: Trait.EXPERTS}
"""axes of a weight → the product that may read it packed: a matrix, or one of a stack"""


def product_weights(graph: Graph) -> frozenset[str]:
    """Full names of the matrices, and of the stacks of matrices, that nothing but products read."""
    found: set[str] = set()
    other: set[str] = set()
    for placement in graph.sequence:
        block = graph.blocks[placement.block]
        for value in block.values:
            if value.role is not Role.WEIGHT or len(value.type.shape) not in _PRODUCTS:
                continue
            trait = _PRODUCTS[len(value.type.shape)]
            name = graph.weight_name(value, placement.layer)
            readers = [block.nodes[i] for i in block.consumers[value.name]]
            only = all(n.op.has(trait) and n.inputs.index(value.name) == 1 for n in readers)
            (found if only else other).add(name)
    return frozenset(found - other)


def router_weights(graph: Graph) -> frozenset[str]:
    """Full names of the matrices whose results experts are chosen by."""
    found: set[str] = set()
    for placement in graph.sequence:
        block = graph.blocks[placement.block]
        for node in block.nodes:
            readers = [block.nodes[i] for out in node.outputs for i in block.consumers[out]]
            if node.op.has(Trait.MATMUL) and any(r.op.has(Trait.ROUTE) for r in readers):
                weight = block.value[node.inputs[1]]
                found.add(graph.weight_name(weight, placement.layer))
    return frozenset(found)


def with_formats(graph: Graph, formats: Mapping[str, DType]) -> Graph:
    """The graph whose weights (by full name) are stored in `formats`, others as they were.

    `UnsupportedError` for one that is neither a matrix nor a stack of matrices.
    Layers that shared a block and now differ get blocks of their own, named `block_2`, …
    """
    blocks: list[Block] = []
    numbers: dict[tuple[int, tuple[tuple[str, DType], ...]], int] = {}
    versions: Counter[int] = Counter()
    sequence = []
    for placement in graph.sequence:
        block = graph.blocks[placement.block]
        names = ((v.name, graph.weight_name(v, placement.layer)) for v in block.values
                 if v.role is Role.WEIGHT)  # fmt: skip
        chosen = tuple((local, formats[full]) for local, full in names if full in formats)
        key = (placement.block, chosen)
        if key not in numbers:
            numbers[key] = len(blocks)
            versions[placement.block] += 1
            blocks.append(_stored_as(block, dict(chosen), versions[placement.block]))
        sequence.append(Placement(numbers[key], placement.layer))
    return replace(graph, blocks=tuple(blocks), sequence=tuple(sequence))


def _stored_as(block: Block, formats: Mapping[str, DType], version: int) -> Block:
    for name, kind in formats.items():
        shape = block.value[name].type.shape
        if len(shape) not in _PRODUCTS:
            raise UnsupportedError(f"{name} {list(shape)} cannot be {kind}: only matrices are")
    values = tuple(
        replace(v, type=replace(v.type, dtype=formats[v.name]))
        if v.role is Role.WEIGHT and v.name in formats
        else v
        for v in block.values
    )
    name = block.name if version == 1 else f"{block.name}_{version}"
    return replace(block, name=name, values=values)
