"""Owns the drawing of a kernel's inside: its ops in a column, values between them as arrows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_ROW = 22
_STEP = 11
_LETTER = 8.2  # width of one 13-pixel monospace letter, with some room


@dataclass(frozen=True)
class Edge:
    """Two ops of one kernel; `flows` when the first one's result is read by the second."""

    first: str
    second: str
    rule: str
    flows: bool = True


def op_chain(ops: Sequence[str], edges: Sequence[Edge]) -> str:
    """An SVG of `ops` in order with the edges between them; edges of other kernels are skipped.

    Neighbours are joined by a straight line, others by an arc that reaches out further with
    distance. Values are arrows, mere company (two readers of one input) is a dashed line.
    """
    place = {name: i for i, name in enumerate(ops)}
    drawn = {
        (place[edge.first], place[edge.second]): edge
        for edge in edges
        if edge.first in place and edge.second in place and edge.first != edge.second
    }
    lanes = max((abs(b - a) for a, b in drawn), default=1)
    left = 10 + _STEP * min(lanes - 1, 8)
    width = left + 14 + max((len(name) for name in ops), default=0) * _LETTER
    parts = [_line(min(ends), max(ends), drawn[ends], left) for ends in sorted(drawn)]
    for i, name in enumerate(ops):
        y = _ROW * i + _ROW / 2
        parts.append(f'<circle class=tip cx="{left}" cy="{y:g}" r="3"/>')
        parts.append(f'<text x="{left + 12}" y="{y + 4.5:g}">{escape(name)}</text>')
    height = _ROW * len(ops)
    return f'<svg width="{width:.0f}" height="{height}" role="img">{"".join(parts)}</svg>'


def _line(first: int, last: int, edge: Edge, x: float) -> str:
    start, end = _ROW * first + _ROW / 2, _ROW * last + _ROW / 2
    if last - first == 1:
        shaft, tip = f"M{x} {start + 4:g}V{end - 9:g}", f"M{x} {end - 4:g}l-3.5 -6h7z"
    else:
        reach = x - _STEP * min(last - first - 1, 8)
        shaft = f"M{x - 3} {start:g}C{reach} {start:g} {reach} {end:g} {x - 8} {end:g}"
        tip = f"M{x - 3} {end:g}l-6 -3.5v7z"
    dashes = "" if edge.flows else ' stroke-dasharray="2 3"'
    head = f'<path class=tip d="{tip}"/>' if edge.flows else ""
    return f'<g><title>{escape(edge.rule)}</title><path d="{shaft}"{dashes}/>{head}</g>'
