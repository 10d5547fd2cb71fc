"""Owns how row ops share a GPU kernel: which of them store rows, and what a row is to each."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.ir.graph import Node
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Dim, Sizes, Type
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region, bits

_WHOLE = Trait.ROW_REDUCE | Trait.ROW_MAP | Trait.ROW_MIX


@dataclass(frozen=True)
class Section:
    """Ops that store rows of one shape; whatever else they need is computed where they need it."""

    leading: Dim
    heads: int
    """rows of a token: 1, or its heads where a row is one head"""
    width: int
    stored: tuple[Node, ...]
    parts: bool
    """whether a block may take part of a row: nothing needs all of it"""

    def rows(self, sizes: Sizes) -> int:
        """Rows at given sizes."""
        tokens = sizes.tokens if self.leading is Dim.T else sizes.rows
        return tokens * self.heads

    def blocks(self, sizes: Sizes, rows: int, width: int) -> int:
        """Blocks of `rows` rows, and of `width` columns where parts are allowed."""
        parts = -(-self.width // width) if self.parts else 1
        return -(-self.rows(sizes) // rows) * parts


def row_sections(region: Region) -> tuple[Section, ...]:
    """What a matched region stores, by the shape of its rows."""
    found: dict[tuple[Dim, int, int], list[Node]] = {}
    for node in _storing(region):
        found.setdefault(_shape(region, node), []).append(node)
    return tuple(
        Section(*shape, tuple(nodes), not any(_reduces(region, n) for n in nodes))
        for shape, nodes in found.items()
    )


def mixed_rows(region: Region) -> Refusal | None:
    """Why an op that stores rows of one shape cannot have what it needs from rows of another."""
    for node in _storing(region):
        heads, width = _shape(region, node)[1:]
        for needed in _needed(region, node):
            other = _worked_on(region, needed)
            whole = needed.op.has(_WHOLE) or len(other.shape) == 3
            if whole and (other.static_elements // other.row_width, other.row_width) != (
                heads,
                width,
            ):
                what = f"rows of {other.row_width}"
                return Refusal(f"{node.name} works on rows of {width}, {needed.name} on {what}")
    return None


def _storing(region: Region) -> list[Node]:
    return [
        n for n in region.nodes if n.op.has(Trait.STATE_WRITE) or n.outputs[0] in region.outputs
    ]


def _needed(region: Region, node: Node) -> list[Node]:
    """The node and what it depends on inside the region."""
    net = region.network
    number = net.producer[node.outputs[0]]
    return [net.nodes[i] for i in bits((net.ancestors[number] | 1 << number) & region.mask)]


def _reduces(region: Region, node: Node) -> bool:
    return any(n.op.has(Trait.ROW_REDUCE | Trait.ROW_MIX) for n in _needed(region, node))


def _shape(region: Region, node: Node) -> tuple[Dim, int, int]:
    type_ = _worked_on(region, node)
    assert type_.leading is not None
    return type_.leading, type_.static_elements // type_.row_width, type_.row_width


def _worked_on(region: Region, node: Node) -> Type:
    """The type whose rows a node walks."""
    if node.op.has(Trait.STATE_WRITE):
        return region.value(node.inputs[1]).type
    name = node.inputs[0] if node.op.has(Trait.ROW_REDUCE) else node.outputs[0]
    return region.value(name).type
