"""Owns the planner's picture of a block: ops as bits, views resolved to index arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from kernelgen.ir.graph import Block, Node, Role, Value
from kernelgen.ir.op import Trait
from kernelgen.ops.view import View

Found = TypeVar("Found")


@dataclass(frozen=True)
class Access:
    """Where a value really lies: in the rows of `base`, from element `offset` on."""

    base: str
    offset: int


@dataclass(frozen=True)
class Network:
    """A block without its views. Node i is bit `1 << i`; nodes are in topological order."""

    block: Block

    @cached_property
    def access(self) -> dict[str, Access]:
        """Every value's place after all views have become index arithmetic."""
        found: dict[str, Access] = {}
        for value in self.block.values:
            found[value.name] = Access(value.name, 0)
        for node in self.block.nodes:
            if isinstance(node.op, View):
                source = found[node.inputs[0]]
                found[node.outputs[0]] = Access(source.base, source.offset + node.op.offset)
        return found

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that compute something."""
        return tuple(n for n in self.block.nodes if not n.op.has(Trait.VIEW))

    @cached_property
    def full(self) -> int:
        """The mask of all nodes."""
        return (1 << len(self.nodes)) - 1

    @cached_property
    def producer(self) -> dict[str, int]:
        """Base value to the node that computes it."""
        return {out: i for i, node in enumerate(self.nodes) for out in node.outputs}

    @cached_property
    def reads(self) -> tuple[tuple[str, ...], ...]:
        """Base values that each node reads."""
        return tuple(
            tuple(dict.fromkeys(self.access[name].base for name in node.inputs))
            for node in self.nodes
        )

    @cached_property
    def readers(self) -> dict[str, int]:
        """Base value to the mask of the nodes that read it."""
        found: dict[str, int] = {}
        for i, names in enumerate(self.reads):
            for name in names:
                found[name] = found.get(name, 0) | 1 << i
        return found

    @cached_property
    def before(self) -> tuple[int, ...]:
        """Mask of the nodes that have to run before each node: those it reads from, and readers of
        what it overwrites.
        """
        found = []
        for i, (node, names) in enumerate(zip(self.nodes, self.reads, strict=True)):
            mask = sum(1 << p for p in {self.producer[n] for n in names if n in self.producer})
            if node.op.has(Trait.STATE_WRITE):
                old = [n for n in names if self.block.value[n].role is Role.STATE]
                for name in old:
                    mask |= self.readers[name] & ((1 << i) - 1)
            found.append(mask)
        return tuple(found)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """Mask of everything that has to run before each node."""
        found: list[int] = []
        for direct in self.before:
            mask = direct
            for i in bits(direct):
                mask |= found[i]
            found.append(mask)
        return tuple(found)

    @cached_property
    def kin(self) -> tuple[int, ...]:
        """For each node its producers, its readers, and those that read a row with it."""
        near = list(self.before)
        for i, direct in enumerate(self.before):
            for j in bits(direct):
                near[j] |= 1 << i
        return self._sharing(near, (Role.STREAM, Role.TEMP))

    @cached_property
    def neighbours(self) -> tuple[int, ...]:
        """Nodes that each node may be fused with: its kin, and those that read a table with it."""
        return self._sharing(list(self.kin), (Role.TABLE,))

    def _sharing(self, near: list[int], roles: tuple[Role, ...]) -> tuple[int, ...]:
        for name, mask in self.readers.items():
            if self.block.value[name].role in roles:
                for i in bits(mask):
                    near[i] |= mask & ~(1 << i)
        return tuple(near)

    def connected(self, mask: int) -> bool:
        """Whether the nodes hang together by rows that they hand on or share."""
        reached = todo = mask & -mask
        while todo:
            near = 0
            for i in bits(todo):
                near |= self.kin[i]
            todo = near & mask & ~reached
            reached |= todo
        return reached == mask

    @cached_property
    def result_bases(self) -> frozenset[str]:
        """Values that later blocks read."""
        return frozenset(self.access[name].base for name in self.block.result_values)

    def needs(self, mask: int) -> int:
        """Nodes outside `mask` that its nodes read from."""
        need = 0
        for i in bits(mask):
            need |= self.before[i]
        return need & ~mask

    def convex(self, mask: int) -> bool:
        """Whether no path leaves the region and comes back."""
        outside = 0
        for i in bits(mask):
            outside |= self.ancestors[i]
        outside &= ~mask
        return not any(self.ancestors[i] & mask for i in bits(outside))


def bits(mask: int) -> list[int]:
    """Numbers of the set bits, lowest first."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


@dataclass(frozen=True)
class Region:
    """Some nodes of a network that might share one kernel."""

    network: Network
    mask: int
    _recalled: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)

    def recall(self, key: object, find: Callable[[], Found]) -> Found:
        """What `find` gives, found once for each key: several families ask the same questions."""
        if key not in self._recalled:
            self._recalled[key] = find()
        found: Found = self._recalled[key]
        return found

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in topological order."""
        return tuple(self.network.nodes[i] for i in bits(self.mask))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Values that somebody outside reads."""
        net = self.network
        return tuple(
            out
            for node in self.nodes
            for out in node.outputs
            if net.readers.get(out, 0) & ~self.mask or out in net.result_bases
        )

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Base values that come from outside, in the order of first use."""
        net = self.network
        made = {out for node in self.nodes for out in node.outputs}
        names = (name for i in bits(self.mask) for name in net.reads[i])
        return tuple(name for name in dict.fromkeys(names) if name not in made)

    @cached_property
    def made(self) -> frozenset[str]:
        """Values computed inside."""
        return frozenset(out for node in self.nodes for out in node.outputs)

    def value(self, name: str) -> Value:
        """A value of the block by name."""
        return self.network.block.value[name]

    def base(self, name: str) -> str:
        """Where a value lies once views are gone."""
        return self.network.access[name].base

    def only_inside(self, name: str) -> bool:
        """Whether a value computed inside is read by nobody outside."""
        return name not in self.outputs

    def with_trait(self, trait: Trait) -> tuple[Node, ...]:
        """Nodes whose op has any of the traits."""
        return tuple(n for n in self.nodes if n.op.has(trait))
