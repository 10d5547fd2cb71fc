"""Owns a plan as plain text: the kernels in order, and why they are cut as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from kernelgen.report.figures import bytes_text, count_text, percent_text, us_text
from kernelgen.report.grouping import Section, sections
from kernelgen.report.plan_data import FusionView, PlanView

_HEAD = ("", "kernel", "family", "bytes", "FLOPs", "predicted", "of memory limit", "verdict", "ops")
_RIGHT = {3, 4, 5, 6}


def plan_text(plan: PlanView) -> str:
    """Title, figures, and one line a kernel; repeated layers once with their count."""
    lines = [plan.title, *_figures(plan), ""]
    rows: list[Sequence[str]] = [_HEAD]
    for section in sections(plan.kernels):
        rows.append((section.title, "", "", "", "", "", "", "", ""))
        rows += _kernel_rows(plan, section)
    lines += _aligned(rows)
    return "\n".join(lines)


def explain_text(plan: PlanView) -> str:
    """`plan_text`, then where each kernel's time comes from, then every neighbouring pair of ops:
    fused or not, by which rule, and why.
    """
    lines = [plan_text(plan), "", *_times(plan), "", *_invariance(plan)]
    for block, group in groupby(plan.fusions, key=lambda fusion: fusion.block):
        items = list(group)
        times = f" ({items[0].times} ×)" if items[0].times > 1 else ""
        taken = [fusion for fusion in items if fusion.taken]
        refused = [fusion for fusion in items if not fusion.taken]
        lines.append(f"{block or 'fusions'}{times}: {len(taken)} fused, {len(refused)} refused")
        lines += [f"  + {_pair(fusion)} {fusion.rule}: {_gain(fusion)}" for fusion in taken]
        for fusion in refused:
            lines.append(f"  - {_pair(fusion)} {fusion.rule}: {fusion.reason}")
            lines.append(f"      would have {_gain(fusion)}")
    return "\n".join(lines)


def _invariance(plan: PlanView) -> Iterator[str]:
    """What a batch-invariant plan did without."""
    if plan.varying is None:
        return
    yield "batch-invariant: every size and both phases have this cut, each kernel with one tile"
    for family, reason in plan.varying.items():
        yield f"  - {family}: {reason}"
    yield ""


def _times(plan: PlanView) -> Iterator[str]:
    """Each distinct kernel once: its verdict, its tile, and what bounds or was measured of it."""
    yield "times"
    known: set[tuple[str, str]] = set()
    for kernel in plan.kernels:
        tile = ", ".join(f"{name} {value}" for name, value in kernel.choice.items())
        told = "; ".join(part for part in (tile, *kernel.limits) if part)
        if told and (kernel.name, told) not in known:
            known.add((kernel.name, told))
            yield f"  {kernel.name}, {kernel.verdict}: {told}"


def _figures(plan: PlanView) -> Iterator[str]:
    total = sum(kernel.bytes for kernel in plan.kernels)
    share = plan.floor_us / plan.predicted_us if plan.predicted_us > 0 else 0.0
    yield (
        f"{len(plan.kernels)} launches, {bytes_text(total)} moved, predicted "
        f"{us_text(plan.predicted_us)}; memory limit {us_text(plan.floor_us)} "
        f"({percent_text(share)} reached)"
    )
    taken = sum(1 for fusion in plan.fusions if fusion.taken)
    parts = [f"{taken} fusions taken, {len(plan.fusions) - taken} refused"]
    if plan.candidates:
        parts.append(f"{plan.candidates} candidate kernels looked at")
    if plan.workspace_bytes:
        parts.append(f"workspace {bytes_text(plan.workspace_bytes)}")
    yield "; ".join(parts)
    if plan.varying is not None:
        yield "batch-invariant: one cut and one tile for every size"
    if plan.coverage:
        told = [f"{v} {c.kernels} ({percent_text(c.share)})" for v, c in plan.coverage.items()]
        yield f"times by launches (share of time): {', '.join(told)}"


def _kernel_rows(plan: PlanView, section: Section) -> Iterator[Sequence[str]]:
    for kernel in section.kernels:
        share = plan.memory_share(kernel)
        yield (
            "",
            kernel.name,
            f"{kernel.family}/{kernel.backend}",
            bytes_text(kernel.bytes),
            count_text(kernel.flops),
            us_text(kernel.predicted_us),
            "–" if share is None else percent_text(share),
            kernel.verdict,
            " → ".join(kernel.ops),
        )


def _pair(fusion: FusionView) -> str:
    return f"{fusion.a} → {fusion.b}"


def _gain(fusion: FusionView) -> str:
    launches = "1 launch" if fusion.launches_saved == 1 else f"{fusion.launches_saved} launches"
    return f"saved {bytes_text(fusion.bytes_saved)} and {launches}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns; the first one is a heading of its own line, the last one is not padded."""
    full = [row for row in rows if row[1]]
    widths = [max((len(row[i]) for row in full), default=0) for i in range(len(_HEAD))]
    for row in rows:
        if not row[1]:
            yield row[0]
            continue
        cells = [
            cell.rjust(widths[i]) if i in _RIGHT else cell.ljust(widths[i])
            for i, cell in enumerate(row)
        ]
        yield ("  " + "  ".join(cells[1:])).rstrip()
