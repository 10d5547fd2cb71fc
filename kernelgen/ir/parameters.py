"""Owns the list of a graph's parameters: each weight once, under its full name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernelgen.ir.graph import Block, Graph, Role, Value
from kernelgen.ir.types import Type


@dataclass(frozen=True)
class Parameter:
    """One weight of the model; `template` has `{layer}` where a layer's number stands."""

    name: str
    template: str
    type: Type


def parameters(graph: Graph) -> tuple[Parameter, ...]:
    """Every weight in order of first use; one that several blocks read is listed once.

    Raises ValueError when two uses of one name have different types.
    """
    found: dict[str, Parameter] = {}
    for placement in graph.sequence:
        for value in _weights(graph.blocks[placement.block]):
            name = graph.weight_name(value, placement.layer)
            template = value.name if placement.layer is None else f"layers.{{layer}}.{value.name}"
            new = Parameter(name, template, value.type)
            if found.setdefault(name, new) != new:
                raise ValueError(f"{name} is used as {found[name].type} and as {value.type}")
    return tuple(found.values())


def _weights(block: Block) -> Iterator[Value]:
    return (v for v in block.values if v.role is Role.WEIGHT)
