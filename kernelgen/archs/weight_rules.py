"""Owns the map between checkpoint names and parameters: ordered rules, one line a tensor kind."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelgen.core.errors import KernelgenError
from kernelgen.ir.graph import Graph
from kernelgen.ir.parameters import parameters

_PLACEHOLDERS = {"layer": r"\{layer\}", "part": "weight|bias"}


@dataclass(frozen=True)
class WeightRules:
    """Ordered pairs (checkpoint name, parameter name) and what may be passed over.

    Both names of a pair may hold `{layer}` (the layer's number) and `{part}` (weight or bias).
    `ignored` are regular expressions that match whole checkpoint names which carry nothing.
    """

    pairs: tuple[tuple[str, str], ...]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorRule:
    """One tensor of the checkpoint and the parameter that it fills, element for element."""

    name: str
    shape: tuple[int, ...]
    parameter: str


def checkpoint_tensors(rules: WeightRules, graph: Graph) -> tuple[TensorRule, ...]:
    """The tensor behind every parameter of the graph.

    `KernelgenError` when a parameter has no rule or two parameters ask for one tensor: a mistake
    of the architecture's folder.
    """
    compiled = [(_regex(parameter), name) for name, parameter in rules.pairs]
    templates: dict[str, str] = {}
    out: dict[str, TensorRule] = {}
    for parameter in parameters(graph):
        template = templates.get(parameter.template)
        if template is None:
            template = templates[parameter.template] = _find(compiled, parameter.template, graph)
        layer = parameter.name.split(".", 2)[1] if parameter.name != parameter.template else ""
        name = template.replace("{layer}", layer)
        shape = tuple(d for d in parameter.type.shape if isinstance(d, int))
        rule = TensorRule(name, shape, parameter.name)
        if out.setdefault(name, rule) is not rule:
            raise KernelgenError(
                f"tensor {name} fills both {out[name].parameter} and {rule.parameter}",
                where=f"weight rules of {graph.name}",
            )
    return tuple(out.values())


def _regex(template: str) -> re.Pattern[str]:
    text = re.escape(template)
    for name, pattern in _PLACEHOLDERS.items():
        text = text.replace(re.escape(f"{{{name}}}"), f"(?P<{name}>{pattern})")
    return re.compile(text)


def _find(compiled: list[tuple[re.Pattern[str], str]], parameter: str, graph: Graph) -> str:
    for pattern, name in compiled:
        match = pattern.fullmatch(parameter)
        if match:
            part = match.groupdict().get("part")
            return name if part is None else name.replace("{part}", part)
    raise KernelgenError(
        f"no rule names the tensor of parameter {parameter}", where=f"weight rules of {graph.name}"
    )
