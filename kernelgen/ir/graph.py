"""Owns the graph: values, nodes, blocks (planned once, placed many times) and their builder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from kernelgen.core.dtypes import FLOAT32
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Type
from kernelgen.spec.model import KeptSpec


class Role(Enum):
    """Where a value comes from."""

    STREAM = "stream"
    """handed from block to block (the residual stream)"""
    WEIGHT = "weight"
    """a parameter of the checkpoint; inside a layer its full name is `layers.<i>.<name>`"""
    TABLE = "table"
    """a constant that the loader computes, such as rotary tables; one for all layers"""
    STATE = "state"
    """a cache of this layer"""
    STEP = "step"
    """what the runtime says about the step: ids, positions, rows"""
    TEMP = "temp"
    """computed by a node of this block"""


@dataclass(frozen=True)
class Value:
    """One SSA value of a block."""

    name: str
    type: Type
    role: Role


@dataclass(frozen=True)
class Node:
    """One op applied to named values; `name` is what people call it (`attn.q`, `mlp.gate`)."""

    name: str
    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A piece of the model that is planned and compiled once, however often it is placed."""

    name: str
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    results: tuple[tuple[str, str], ...]
    """(stream name, value): what later blocks see under that name"""

    @cached_property
    def value(self) -> dict[str, Value]:
        """Values by name."""
        return {v.name: v for v in self.values}

    @cached_property
    def producer(self) -> dict[str, int]:
        """Value name to the number of the node that computes it."""
        return {out: i for i, node in enumerate(self.nodes) for out in node.outputs}

    @cached_property
    def consumers(self) -> dict[str, tuple[int, ...]]:
        """Value name to the numbers of the nodes that read it."""
        found: dict[str, list[int]] = {v.name: [] for v in self.values}
        for i, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.inputs):
                found[name].append(i)
        return {name: tuple(where) for name, where in found.items()}

    @cached_property
    def result_values(self) -> frozenset[str]:
        """Values that leave the block."""
        return frozenset(value for _, value in self.results)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """The states as they are when the block begins, in the order of their declaration."""
        return tuple(
            v.name for v in self.values if v.role is Role.STATE and v.name not in self.producer
        )

    def kept_as(self, state: str) -> int:
        """The number among `kept` of the state that a value is a version of."""
        while state in self.producer:
            node = self.nodes[self.producer[state]]
            state = next(n for n in node.inputs if self.value[n].role is Role.STATE)
        return self.kept.index(state)

    def input_types(self, node: Node) -> tuple[Type, ...]:
        """Types of a node's inputs."""
        return tuple(self.value[name].type for name in node.inputs)


@dataclass(frozen=True)
class Placement:
    """One use of a block in the order of execution."""

    block: int
    layer: int | None


@dataclass(frozen=True)
class Table:
    """A rotary table that the loader makes: cos and sin of position × frequency, times `scale`."""

    name: str
    inv_freq: tuple[float, ...]
    scale: float
    positions: int

    @property
    def type(self) -> Type:
        """`float32 [positions, 2, frequencies]`."""
        return Type((self.positions, 2, len(self.inv_freq)), FLOAT32)


@dataclass(frozen=True)
class Graph:
    """A whole model step: distinct blocks and the order in which they run."""

    name: str
    blocks: tuple[Block, ...]
    sequence: tuple[Placement, ...]
    caches: tuple[tuple[int, KeptSpec], ...] = ()
    """(layer, what it keeps) for every state of a placed layer, those of one layer in the order in
    which its block declares them"""
    tables: tuple[Table, ...] = ()
    """behind every value of role TABLE"""

    def weight_name(self, value: Value, layer: int | None) -> str:
        """Full name of a weight or table where it is used."""
        if layer is None or value.role is Role.TABLE:
            return value.name
        return f"layers.{layer}.{value.name}"


@dataclass
class BlockBuilder:
    """Builds one block; every `apply` checks shapes at once."""

    name: str
    _values: dict[str, Value] = field(default_factory=dict)
    _nodes: list[Node] = field(default_factory=list)

    def declare(self, name: str, type_: Type, role: Role) -> str:
        """Introduce an outside value; declaring it twice with one meaning is fine."""
        value = Value(name, type_, role)
        if self._values.setdefault(name, value) != value:
            raise ValueError(f"block {self.name}: {name} is declared twice with different types")
        return name

    def apply(self, name: str, op: Op, *inputs: str) -> str:
        """Add a node with one output, named like the node."""
        outputs = op.infer([self._values[i].type for i in inputs])
        if len(outputs) != 1:
            raise ValueError(f"{name}: {op.kind} has {len(outputs)} outputs")
        if name in self._values:
            raise ValueError(f"block {self.name}: two values are called {name}")
        role = Role.STATE if op.has(Trait.STATE_WRITE) else Role.TEMP
        self._values[name] = Value(name, outputs[0], role)
        self._nodes.append(Node(name, op, tuple(inputs), (name,)))
        return name

    def scan(self, name: str, op: Op, *inputs: str) -> str:
        """Add a node that leaves a state behind, `<name>.state`; its other output is returned."""
        made, kept = op.infer([self._values[i].type for i in inputs])
        after = f"{name}.state"
        for out, type_, role in ((name, made, Role.TEMP), (after, kept, Role.STATE)):
            if out in self._values:
                raise ValueError(f"block {self.name}: two values are called {out}")
            self._values[out] = Value(out, type_, role)
        self._nodes.append(Node(name, op, tuple(inputs), (name, after)))
        return name

    def type_of(self, name: str) -> Type:
        """Type of a value already there."""
        return self._values[name].type

    def build(self, results: Sequence[tuple[str, str]]) -> Block:
        """Freeze; `results` says which values later blocks see under which stream names."""
        return Block(self.name, tuple(self._values.values()), tuple(self._nodes), tuple(results))
