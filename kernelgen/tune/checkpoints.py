"""Owns what a killed run leaves behind of a group: measurements that a quiet device vouches for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelgen.tune.bundle import Group
from kernelgen.tune.findings import is_quiet
from kernelgen.tune.journal import Notes
from kernelgen.tune.measurer import Canary, Machine

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Kept:
    """Lines of the journal by candidate that count although their group was not finished."""

    coarse: Mapping[str, Line] = field(default_factory=dict)
    fine: Mapping[str, Line] = field(default_factory=dict)


def vouch(
    journal: Notes,
    group: Group,
    machine: Machine,
    canary: Canary,
    coarse: Iterable[str],
    fine: Iterable[str],
) -> None:
    """Writes down that the device was quiet before and after these candidates of an attempt.

    Nothing is written where it was not: what was measured since is measured again after a kill.
    """
    if is_quiet(canary, machine.canary.gb_s):
        journal.add(
            "quiet", group=group.id, code=group.code, device=machine.device, driver=machine.driver,
            ceiling=machine.canary.gb_s, coarse=list(coarse), fine=list(fine),
        )  # fmt: skip


def kept(journal: Notes, group: Group, machine: Machine) -> Kept:
    """What the last word on an unfinished group vouches for, if this is the machine that it speaks
    of and the code is still the same: of each candidate the last line before that word.
    """
    before = _up_to_last_word(journal, group)
    if not before or not _is_here(before[-1], group, machine):
        return Kept()
    word, here = before[-1], {c.id: c.source for c in group.candidates}
    found: dict[str, dict[str, Line]] = {"coarse": {}, "fine": {}}
    for line in before:
        kind, name = line["kind"], line.get("candidate")
        if kind in found and name in here and name in word[kind] and _is_whole(line, here[name]):
            found[kind][name] = line
    return Kept(found["coarse"], found["fine"])


def _up_to_last_word(journal: Notes, group: Group) -> list[Line]:
    """Lines about a group since it was last finished, to the last that vouches for others."""
    mine: list[Line] = []
    for line in journal.lines:
        if line.get("group") == group.id:
            mine = [] if line["kind"] == "group" else [*mine, line]
    last = max((i for i, line in enumerate(mine) if line["kind"] == "quiet"), default=-1)
    return mine[: last + 1]


def _is_here(word: Line, group: Group, machine: Machine) -> bool:
    ceiling = word.get("ceiling")
    lists = all(isinstance(word.get(kind), list) for kind in ("coarse", "fine"))
    if not lists or not isinstance(ceiling, int | float):
        return False
    told = (word["code"], word["device"], word["driver"])
    here = told == (group.code, machine.device, machine.driver)
    return here and is_quiet(Canary(float(ceiling)), machine.canary.gb_s)


def _is_whole(line: Line, code: str) -> bool:
    """Whether a line is of this code and has what is judged later: files may be edited by hand."""
    us, share = line.get("us"), line.get("share", 0.0)
    times = isinstance(us, list) and all(type(t) in (int, float) and t > 0 for t in us)
    judged = type(share) in (int, float) or bool(line.get("bad"))
    told = line["kind"] == "fine" or isinstance(line.get("bad"), str)
    return times and judged and told and line.get("code") == code
