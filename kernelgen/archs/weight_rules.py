"""Owns the map between checkpoint names and parameters: ordered rules, one line a tensor kind."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from kernelgen.core.errors import KernelgenError
from kernelgen.ir.graph import Graph
from kernelgen.ir.parameters import parameters

_PLACEHOLDERS = {"layer": r"\{layer\}", "part": "weight|bias"}


@dataclass(frozen=True)
class WeightRules:
    """Ordered pairs (checkpoint name, parameter name) and what may be passed over.

    Both names of a pair may hold `{layer}` (the layer's number) and `{part}` (weight or bias).
    `ignored` are regular expressions that match whole checkpoint names which carry nothing.
    `packed`: a tensor whose rows are those of several parameters of one shape, one after another
    (in each matrix, where it is a stack of them).
    """

    pairs: tuple[tuple[str, str], ...]
    ignored: tuple[str, ...] = ()
    packed: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class TensorRule:
    """One tensor of the checkpoint and the parameter that it fills, element for element.

    `take` = (first, count, period): of each `period` rows `count` from `first` on; None: all.
    """

    name: str
    shape: tuple[int, ...]
    parameter: str
    take: tuple[int, int, int] | None = None

    def of(self, tensor: Any) -> Any:
        """The parameter's elements."""
        if self.take is None:
            return tensor
        first, count, _ = self.take
        return tensor[..., first : first + count, :]


@dataclass(frozen=True)
class _Source:
    """Where a parameter lies: its tensor, and which of how many equal runs of rows."""

    name: str
    number: int = 0
    of: int = 1


def checkpoint_tensors(rules: WeightRules, graph: Graph) -> tuple[TensorRule, ...]:
    """The tensor behind every parameter of the graph.

    `KernelgenError` when a parameter has no rule or two parameters ask for one tensor: a mistake
    of the architecture's folder.
    """
    compiled = [(_regex(parameter), _Source(name)) for name, parameter in rules.pairs]
    for name, held in rules.packed:
        compiled += [(_regex(p), _Source(name, i, len(held))) for i, p in enumerate(held)]
    templates: dict[str, _Source] = {}
    out: dict[tuple[str, int], TensorRule] = {}
    for parameter in parameters(graph):
        source = templates.get(parameter.template)
        if source is None:
            source = templates[parameter.template] = _find(compiled, parameter.template, graph)
        layer = parameter.name.split(".", 2)[1] if parameter.name != parameter.template else ""
        name = source.name.replace("{layer}", layer)
        shape = tuple(d for d in parameter.type.shape if isinstance(d, int))
        rule = _rule(name, shape, parameter.name, source)
        key = name, source.number
        if out.setdefault(key, rule) is not rule:
            raise KernelgenError(
                f"tensor {name} fills both {out[key].parameter} and {rule.parameter}",
                where=f"weight rules of {graph.name}",
            )
    return tuple(out.values())


def _rule(name: str, shape: tuple[int, ...], parameter: str, source: _Source) -> TensorRule:
    if source.of == 1:
        return TensorRule(name, shape, parameter)
    *stack, rows, columns = shape
    whole = rows * source.of
    take = (rows * source.number, rows, whole)
    return TensorRule(name, (*stack, whole, columns), parameter, take)


def _regex(template: str) -> re.Pattern[str]:
    text = re.escape(template)
    for name, pattern in _PLACEHOLDERS.items():
        text = text.replace(re.escape(f"{{{name}}}"), f"(?P<{name}>{pattern})")
    return re.compile(text)


def _find(compiled: list[tuple[re.Pattern[str], _Source]], parameter: str, graph: Graph) -> _Source:
    for pattern, source in compiled:
        match = pattern.fullmatch(parameter)
        if match:
            part = match.groupdict().get("part")
            return (
                source
                if part is None
                else replace(source, name=source.name.replace("{part}", part))
            )
    raise KernelgenError(
        f"no rule names the tensor of parameter {parameter}", where=f"weight rules of {graph.name}"
    )
