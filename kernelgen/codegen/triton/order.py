"""Owns the order of printed statements around the wait for the kernel before, and around a loop.

What depends on weights, tables and the step's arguments alone can run while that kernel is still at
work; what it writes is loaded in one go after the wait, so that its latency is paid once. In a loop
loads are issued a step before they are used.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kernelgen.codegen.triton.expressions import triton_name
from kernelgen.ir.graph import Role
from kernelgen.planner.network import Region

_NAME = re.compile(r"[A-Za-z_]\w*")


def late(region: Region) -> set[str]:
    """Pointers that an earlier kernel of the step writes."""
    roles = (Role.STREAM, Role.TEMP)
    return {triton_name(region.base(n)) for n in region.inputs if region.value(n).role in roles}


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


@dataclass(frozen=True)
class Ahead:
    """Assignments of a loop: loads that can be issued a step before they are used, and the rest."""

    early: tuple[tuple[str, str], ...]
    """(name, text): those of the first step need not wait for the kernel before"""
    late: tuple[tuple[str, str], ...]
    work: tuple[str, ...]


def ahead(lines: Sequence[str], late: Collection[str], bound: Collection[str] = ()) -> Ahead:
    """Divide assignments. `late`: pointers that the kernel before may write, and what was read from
    them; `bound`: names that the loop itself gives anew to each step, so that nothing made of them
    can be loaded before.
    """
    kept = set(bound)
    early: list[tuple[str, str]] = []
    waiting: list[tuple[str, str]] = []
    work: list[str] = []
    for line in lines:
        name, _, text = line.partition(" = ")
        used = set(_NAME.findall(text))
        if "tl.load(" in text and not used & kept:
            (waiting if used & set(late) else early).append((name, text))
        else:
            kept.add(name)
            work.append(line)
    return Ahead(tuple(early), tuple(waiting), tuple(work))
