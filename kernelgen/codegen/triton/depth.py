"""Owns the Triton of mixtures over depth: sources a few at a time, each loaded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kernelgen.codegen.triton.expressions import triton_expr
from kernelgen.codegen.triton.frame import Frame
from kernelgen.ir.expr import arg, call
from kernelgen.ir.graph import Node
from kernelgen.ops import DepthMix
from kernelgen.planner.network import Region

TOGETHER = 3
"""sources whose sums wait for one another once, and whose rows are in registers at a time"""
_POWER = call("exp", arg(0) - arg(1))


class Statements(Protocol):
    """What a tile program offers to the printing of one op."""

    region: Region
    frame: Frame
    lines: list[str]

    def value(self, name: str, frame: Frame | None = None) -> str:
        """The variable that holds a value at the frame."""

    def let(self, name: str, text: str) -> str:
        """Assign a text to a new variable named after a value."""

    def fresh(self, stem: str) -> str:
        """A name that no other statement of the kernel assigns."""


def depth_mixed(program: Statements, node: Node, at: Frame) -> str:
    """The mixture; what has been summed up is scaled whenever the largest score grows."""
    assert isinstance(node.op, DepthMix)
    *sources, norm, probe = node.inputs
    stem, op = node.outputs[0], node.op
    vector = program.let(
        f"{stem}.vector", f"{program.value(norm, at)} * {program.value(probe, at)}"
    )
    top = total = mixed = ""
    for start in range(0, len(sources), TOGETHER):
        rows = [_row(program, stem, name, at) for name in sources[start : start + TOGETHER]]
        scores = _scores(
            program, stem, rows, vector, op.eps, program.region.value(stem).type.row_width
        )
        largest = program.let(f"{stem}.top", _largest([*([top] if top else []), *scores]))
        weights = [
            program.let(f"{stem}.weight", triton_expr(_POWER, [score, largest])) for score in scores
        ]
        totals, terms = list(weights), [f"{w} * {x}" for w, x in zip(weights, rows, strict=True)]
        if top:
            kept = program.let(f"{stem}.kept", triton_expr(_POWER, [top, largest]))
            totals, terms = [f"{total} * {kept}", *totals], [f"{mixed} * {kept}", *terms]
        top = largest
        total = program.let(f"{stem}.total", " + ".join(totals))
        mixed = program.let(f"{stem}.mixed", " + ".join(terms))
    return f"{mixed} / {total}"


def sums_together(nodes: Sequence[Node]) -> list[int]:
    """How many sums are taken at a time by any of the mixtures: one function each."""
    sources = [len(n.inputs) - 2 for n in nodes if isinstance(n.op, DepthMix)]
    parts = {
        min(TOGETHER, count - start) for count in sources for start in range(0, count, TOGETHER)
    }
    return sorted(2 * part for part in parts)


def _row(program: Statements, stem: str, name: str, at: Frame) -> str:
    """A source at the frame, zeros behind the row's end: they count in no sum."""
    value, mask = program.value(name, at), program.frame.vector
    if not mask.text:
        return value
    kept = f"tl.where({mask.text}, {value}, 0.0)"
    return program.let(
        f"{stem}.source", f"{kept} if {mask.only_if} else {value}" if mask.only_if else kept
    )


def _scores(
    program: Statements, stem: str, rows: Sequence[str], vector: str, eps: float, width: int
) -> list[str]:
    """Of each row, its sums taken together."""
    terms = [term for row in rows for term in (f"{row} * {vector}", f"{row} * {row}")]
    names = [program.fresh(f"{stem}_sum") for _ in terms]
    made = f"tl.reduce(({', '.join(terms)}), 1, sums_of_{len(terms)})"
    program.lines.append(f"{', '.join(names)} = {made}")
    return [
        program.let(
            f"{stem}.score",
            f"{dot}[:, None] * tl.rsqrt({square}[:, None] / {float(width)!r} + {eps!r})",
        )
        for dot, square in zip(names[::2], names[1::2], strict=True)
    ]


def _largest(scores: Sequence[str]) -> str:
    text = scores[0]
    for score in scores[1:]:
        text = f"tl.maximum({text}, {score})"
    return text
