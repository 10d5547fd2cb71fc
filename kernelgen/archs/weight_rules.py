"""Owns the map between checkpoint names and parameters: ordered rules, one line a tensor kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from kernelgen.core.errors import KernelgenError
from kernelgen.ir.graph import Graph
from kernelgen.ir.parameters import parameters

_PLACEHOLDERS = {"layer": r"\{layer\}", "part": "weight|bias"}
_EXPERT = "{expert}"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class WeightRules:
    """Ordered pairs (checkpoint name, parameter name) and what may be passed over.

    Both names of a pair may hold `{layer}` (the layer's number) and `{part}` (weight or bias). The
    checkpoint name may hold `{expert}` where it is one of the matrices of a stack.
    `ignored` are regular expressions that match whole checkpoint names which carry nothing.
    `packed`: a tensor whose rows are those of several parameters, one after another (in each
    matrix, where it is a stack of them).
    `stored`: (checkpoint name, the tensor's shape from that of what it holds) where the file has
    other axes than the parameter, or more entries than are used: the first ones are.
    `plain`: regular expressions of modules (a tensor's name without `.weight`) that published
    checkpoints store plainly though their configs announce every product; a checkpoint at hand
    says itself what it has.
    """

    pairs: tuple[tuple[str, str], ...]
    ignored: tuple[str, ...] = ()
    packed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    stored: tuple[tuple[str, Callable[[Shape], Shape]], ...] = ()
    plain: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorRule:
    """One tensor of the checkpoint and the parameter that it fills, or one matrix of.

    `take` = (first, count, period): of each `period` rows `count` from `first` on; None: all.
    `expert`: the number of the matrix in the parameter's stack. `held`: the shape of what the
    tensor holds, where its own axes are others.
    """

    name: str
    shape: Shape
    parameter: str
    take: tuple[int, int, int] | None = None
    expert: int | None = None
    held: Shape | None = None

    def of(self, tensor: Any) -> Any:
        """The elements that the tensor has of the parameter."""
        whole = tensor if self.held is None else tensor.reshape(self.held)
        if self.take is None:
            return whole
        first, count, _ = self.take
        if whole.ndim == 1:
            return whole[first : first + count]
        return whole[..., first : first + count, :]


def assembled(rules: Iterable[TensorRule], tensor: Callable[[str], Any]) -> dict[str, Any]:
    """Parameter → its elements, from torch tensors by name; matrices of a stack are put together.

    What `tensor` gives None for is left out.
    """
    found: dict[str, Any] = {}
    stacks: dict[str, dict[int, Any]] = {}
    for rule in rules:
        given = tensor(rule.name)
        if given is None:
            continue
        if rule.expert is None:
            found[rule.parameter] = rule.of(given)
        else:
            stacks.setdefault(rule.parameter, {})[rule.expert] = rule.of(given)
    for name, matrices in stacks.items():
        first = matrices[min(matrices)]
        found[name] = first.new_empty((len(matrices), *first.shape))
        for e, matrix in matrices.items():
            found[name][e] = matrix
    return found


@dataclass(frozen=True)
class _Source:
    """Where a parameter lies: its tensor, and what lies with it there."""

    name: str
    number: int = 0
    held: tuple[str, ...] = ()


def checkpoint_tensors(rules: WeightRules, graph: Graph) -> tuple[TensorRule, ...]:
    """The tensor behind every parameter of the graph, or all of those that make it up.

    `KernelgenError` when a parameter has no rule or two parameters ask for one tensor: a mistake
    of the architecture's folder.
    """
    compiled = [(_regex(parameter), _Source(name)) for name, parameter in rules.pairs]
    for name, held in rules.packed:
        compiled += [(_regex(p), _Source(name, i, held)) for i, p in enumerate(held)]
    all_parameters = parameters(graph)
    shapes = {p.name: tuple(d for d in p.type.shape if isinstance(d, int)) for p in all_parameters}
    stored = dict(rules.stored)
    templates: dict[str, _Source] = {}
    out: dict[tuple[str, int], TensorRule] = {}
    for parameter in all_parameters:
        source = templates.get(parameter.template)
        if source is None:
            source = templates[parameter.template] = _find(compiled, parameter.template, graph)
        layer = parameter.name.split(".", 2)[1] if parameter.name != parameter.template else ""
        rule = _rule(source, parameter.name, shapes, layer)
        if source.name in stored:
            rule = _stored(rule, stored[source.name](rule.shape))
        for one in _experts(rule, shapes[parameter.name]):
            key = one.name, source.number
            if out.setdefault(key, one) is not one:
                raise KernelgenError(
                    f"tensor {one.name} fills both {out[key].parameter} and {one.parameter}",
                    where=f"weight rules of {graph.name}",
                )
    return tuple(out.values())


def _rule(source: _Source, parameter: str, shapes: Mapping[str, Shape], layer: str) -> TensorRule:
    name, shape = source.name.replace("{layer}", layer), shapes[parameter]
    if not source.held:
        return TensorRule(name, shape, parameter)
    rows = [shapes[held.replace("{layer}", layer)][-2] for held in source.held]
    whole = (*shape[:-2], sum(rows), shape[-1])
    take = (sum(rows[: source.number]), rows[source.number], sum(rows))
    return TensorRule(name, whole, parameter, take)


def _stored(rule: TensorRule, shape: Shape) -> TensorRule:
    """The rule for a tensor of that shape; one with more entries is a list of numbers."""
    more, count = prod(shape), prod(rule.shape)
    if more == count:
        return replace(rule, shape=shape, held=rule.shape)
    return replace(rule, shape=shape, held=(more,), take=(0, count, more))


def _experts(rule: TensorRule, shape: Shape) -> Iterator[TensorRule]:
    """The rule itself, or one for each matrix of the stack."""
    if _EXPERT not in rule.name:
        yield rule
        return
    for e in range(shape[0]):
        name = rule.name.replace(_EXPERT, str(e))
        yield replace(rule, name=name, shape=rule.shape[1:], expert=e)


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
