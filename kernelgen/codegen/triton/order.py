"""Owns the order of printed statements around the wait for the kernel before.

What depends on weights, tables and the step's arguments alone can run while that kernel is still at
work; what it writes is loaded in one go after the wait, so that its latency is paid once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Ordered:
    """Assignments `name = text`, each part in its first order."""

    early: tuple[str, ...]
    """before the wait"""
    loads: tuple[str, ...]
    """right after the wait: nothing but addresses known before it"""
    work: tuple[str, ...]


def in_order(lines: Sequence[str], late: Collection[str]) -> Ordered:
    """Divide assignments by whether they need `late`: pointers that the kernel before may write."""
    waiting: set[str] = set()
    parts: dict[str, list[str]] = {"early": [], "loads": [], "work": []}
    for line in lines:
        name, _, text = line.partition(" = ")
        used = set(_NAME.findall(text))
        if used & waiting:
            part = "work"
        elif used & set(late):
            part = "loads" if "tl.load(" in text else "work"
        else:
            part = "early"
        parts[part].append(line)
        if part != "early":
            waiting.add(name)
    return Ordered(tuple(parts["early"]), tuple(parts["loads"]), tuple(parts["work"]))
