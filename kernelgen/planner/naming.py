"""Owns kernel names: short, from the ops covered, one for each variant."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kernelgen.ir.graph import Node
from kernelgen.ir.op import Trait
from kernelgen.planner.family import Match

_ANCHORS = Trait.MATMUL | Trait.ATTENTION | Trait.SAMPLE | Trait.ROUTE | Trait.EXPERTS
_LONGEST = 48


@dataclass
class KernelNames:
    """Hands out one name for each variant text of a build."""

    _by_variant: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def name(self, match: Match) -> str:
        """The kernel's name; a number tells apart different variants of the same ops."""
        key = f"{match.family.backend} {match.family.name} {match.variant}"
        if key not in self._by_variant:
            stem = _stem(match.region.nodes)
            name, count = stem, 1
            while name in self._taken:
                count += 1
                name = f"{stem}_{count}"
            self._taken.add(name)
            self._by_variant[key] = name
        return self._by_variant[key]


def _stem(nodes: tuple[Node, ...]) -> str:
    """`norm_attn_q_k_v`, `mlp_gate_up_act`, `attn`: what comes before the anchor, the anchor, what
    comes after.
    """
    anchors = [i for i, n in enumerate(nodes) if n.op.has(_ANCHORS)]
    if not anchors:
        chosen = nodes if len(nodes) <= 2 else (nodes[0], nodes[-1])
        return _identifier(_join([n.name for n in chosen]))
    before = nodes[: anchors[0]]
    after = [n for i, n in enumerate(nodes) if i > anchors[-1] and not n.op.has(_ANCHORS)]
    words = ["norm"] if any(n.op.has(Trait.ROW_REDUCE) for n in before) else []
    if any(n.op.has(Trait.STATE_WRITE) for n in before):
        words.append("insert")
    names = [nodes[i].name for i in anchors]
    own = tuple(f"{name}." for name in names)  # biases and scales of one anchor say nothing new
    words.append(_join(names + [n.name for n in after[-1:] if not n.name.startswith(own)]))
    return _identifier("_".join(words))


def _join(names: list[str]) -> str:
    """Dotted names with their common first part said once."""
    heads = [n.rpartition(".")[0] for n in names]
    if len(set(heads)) == 1 and heads[0]:
        return "_".join([heads[0], *(n.rpartition(".")[2] for n in names)])
    return "_".join(names)


def _identifier(text: str) -> str:
    clean = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return clean[:_LONGEST].rstrip("_") or "kernel"
