"""Owns the step from measured groups to rows of the tables, and their way into the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelgen.core.decode import from_json
from kernelgen.core.errors import UsageError, quote
from kernelgen.core.jsonio import to_json
from kernelgen.tables import Row
from kernelgen.tables.file import merge, read_rows, table_path, write_rows
from kernelgen.tables.row import Clocks
from kernelgen.tune.bundle import Bundle, Candidate, DeviceFacts, Group
from kernelgen.tune.measurer import Canary, Machine

WHOLE_STEP = "-whole-step"
"""end of the name of a sweep whose tiles were chosen inside the whole step"""
_WARM = frozenset({"rows", "sample", "route"})
"""families that read nothing but what the kernel before has just written"""
_COLD = 2.0
"""times the L2 cache: from so many bytes on even those come from memory"""


def ceiling_us(facts: DeviceFacts, group: Group) -> float:
    """The time below which no kernel can do the group's bytes and operations."""
    rate = facts.tflops.get(group.math) or max(facts.tflops.values())
    return max(group.bytes / (facts.read_gb_s * 1e3), group.flops / (rate * 1e6))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The sample that so many are not above; `ordered` is sorted and not empty."""
    return ordered[min(len(ordered) - 1, int(share * (len(ordered) - 1) + 0.5))]


def row_of(
    bundle: Bundle,
    group: Group,
    candidate: Candidate,
    samples: Sequence[float],
    share: float,
    machine: Machine,
    canaries: Sequence[Canary],
    date: str,
) -> Row:
    """The row of a group whose fastest right candidate this is."""
    ordered = sorted(samples)
    us = round(quantile(ordered, 0.5), 3)
    cold = group.family not in _WARM
    return Row(
        schema=2,
        sm=bundle.device.sm_name,
        device=bundle.device.name,
        family=group.family,
        variant=group.variant,
        bucket=group.bucket,
        backend="triton",
        choice=dict(candidate.choice),
        us=us,
        us_p10=min(us, round(quantile(ordered, 0.1), 3)),
        us_p90=max(us, round(quantile(ordered, 0.9), 3)),
        samples=len(ordered),
        l2="cold" if cold or group.bytes > _COLD * bundle.device.l2_bytes else "warm",
        share_of_ceiling=round(ceiling_us(bundle.device, group) / us, 4) or None,
        error_share=min(1.0, round(share, 4)),
        bytes=group.bytes,
        flops=group.flops,
        source=candidate.source,
        toolchain={**bundle.toolchain, "torch": machine.torch},
        device_label=machine.device,
        driver=machine.driver,
        clocks=_clocks(canaries),
        date=date,
        provenance=f"{bundle.device.name}-{date[:10]}-{group.model}",
    )


def _clocks(canaries: Sequence[Canary]) -> Clocks | None:
    sm = [c.sm_mhz for c in canaries if c.sm_mhz]
    memory = [c.memory_mhz for c in canaries if c.memory_mhz]
    return Clocks(min(sm), max(sm), min(memory), max(memory)) if sm and memory else None


@dataclass(frozen=True)
class Brought:
    """What a merge did to the tables."""

    files: tuple[str, ...]
    """those that have changed"""
    added: int
    replaced: int
    kept: int
    """rows of the tables that are newer than what was brought"""
    conflicts: tuple[str, ...]
    problems: tuple[str, ...] = ()
    """lines of journals that are none, and rows that are none"""
    notes: tuple[str, ...] = ()
    """what is left to do by hand"""


def rows_in(
    lines: Iterable[Mapping[str, Any]], provenance: str = ""
) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """Rows of a journal's groups that may be shipped: right, and measured on a quiet device; and
    one line of text for each that is no row.
    """
    found: dict[Any, Row] = {}
    problems: list[str] = []
    for line in lines:
        if line["kind"] != "group" or line.get("row") is None or line.get("flag"):
            continue
        try:
            row = from_json(Row, line["row"], source=f"group {quote(line.get('group'))}")
            if provenance:
                end = WHOLE_STEP if row.provenance.endswith(WHOLE_STEP) else ""
                row = replace(row, provenance=provenance.removesuffix(end) + end)
        except UsageError as error:
            problems.append(" ".join(str(error).split()))
        else:
            found[row.key] = row
    return tuple(found.values()), tuple(problems)


def bring(rows: Sequence[Row], folder: Path) -> Brought:
    """Merges rows into the tables below `folder`; each file is replaced whole or not at all.

    `UsageError` where the tables cannot be written.
    """
    files: list[str] = []
    conflicts: list[str] = []
    added = replaced = kept = 0
    for place in sorted({(r.sm, r.device, r.family) for r in rows}):
        path = table_path(folder, *place)
        old = read_rows(path) if path.exists() else None
        if old is not None and old.problems:
            raise UsageError(
                f"cannot be read whole, and a merge would drop the rest: {old.problems[0]}",
                where=str(path),
                hint="see `kernelgen tables check`, or upgrade kernelgen",
            )
        have = old.rows if old else ()
        mine = [r for r in rows if (r.sm, r.device, r.family) == place]
        merged = merge(have, mine)
        known = {r.key: r for r in have}
        now = {r.key: r for r in merged.rows}
        for row in mine:
            took = now[row.key] == row
            added += row.key not in known
            replaced += row.key in known and took and known[row.key] != row
            kept += row.key in known and not took
        conflicts += merged.conflicts
        if merged.rows != tuple(sorted(have, key=lambda r: r.order)):
            write_rows(path, merged.rows)
            files.append(str(path))
    return Brought(tuple(files), added, replaced, kept, tuple(conflicts))


def row_json(row: Row) -> Any:
    """A row as a line of a journal keeps it."""
    return to_json(row)
