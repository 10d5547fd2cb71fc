"""Owns the kernels of a step with what they move: records and plan brought together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelgen.bench.built import Built
from kernelgen.bench.case import Case
from kernelgen.bench.records import LaunchTime, StepProfile
from kernelgen.report.plan_data import KernelView


@dataclass(frozen=True)
class MeasuredLaunch:
    """One launch of a step. `planned` is None for what no plan lists, or where there is no plan.

    `bytes`: what it has to move at the measured batch and context.
    """

    time: LaunchTime
    planned: KernelView | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class KernelFigures:
    """All launches of one kernel in a step: how many, medians of one, the sum of their advances.

    `gb_s` is bytes over advance, 10⁹ bytes a second: what the kernel reads while another one is
    still the last to end counts for it.
    """

    name: str
    launches: int
    duration_us: float
    advance_us: float
    total_us: float
    predicted_us: float | None
    bytes: int | None
    gb_s: float | None


def measured_launches(
    profile: StepProfile, built: Built, case: Case, context: int
) -> tuple[tuple[MeasuredLaunch, ...], str]:
    """The launches of a profile with their entries of the plan, and why there are none.

    Steps open with launches that no plan lists (they prepare its arguments); the rest follow the
    plan one by one, or nothing is assigned.
    """
    bare = tuple(MeasuredLaunch(time) for time in profile.launches)
    plan = built.decode_plan(case.batch)
    size = built.decode_size(case.batch)
    if plan is None:
        return bare, f"the build holds no plan of {size} requests: bytes are not known"
    view = plan.view
    before = len(bare) - len(view.kernels)
    names = [launch.time.name for launch in bare[max(0, before) :]]
    if before < 0 or names != [_symbol(kernel.name) for kernel in view.kernels]:
        return bare, f"the step's kernels are not those of plan decode {size}: bytes are not known"
    moved = [
        _bytes(kernel, built, view.size, view.context, case, context) for kernel in view.kernels
    ]
    follow = zip(bare[before:], view.kernels, moved, strict=True)
    return (*bare[:before], *(MeasuredLaunch(b.time, k, n) for b, k, n in follow)), ""


def by_kernel(launches: Sequence[MeasuredLaunch]) -> tuple[KernelFigures, ...]:
    """Launches with one name and one number of bytes as one entry, longest total first."""
    groups: dict[tuple[str, int | None], list[MeasuredLaunch]] = {}
    for launch in launches:
        groups.setdefault((launch.time.name, launch.bytes), []).append(launch)
    found = [_figures(name, moved, group) for (name, moved), group in groups.items()]
    return tuple(sorted(found, key=lambda figures: -figures.total_us))


def _figures(name: str, moved: int | None, group: Sequence[MeasuredLaunch]) -> KernelFigures:
    count = len(group)
    total = sum(launch.time.advance_us for launch in group)
    predicted = [launch.planned.predicted_us for launch in group if launch.planned]
    return KernelFigures(
        name=name,
        launches=count,
        duration_us=round(sum(launch.time.duration_us for launch in group) / count, 3),
        advance_us=round(total / count, 3),
        total_us=round(total, 3),
        predicted_us=round(sum(predicted) / count, 3) if predicted else None,
        bytes=moved,
        gb_s=round(moved * count / total / 1e3, 1) if moved and total else None,
    )


def _symbol(name: str) -> str:
    """A plan writes the pass of a kernel behind a dot."""
    return name.replace(".", "_")


def _bytes(
    kernel: KernelView, built: Built, size: int, planned: int, case: Case, context: int
) -> int:
    """The plan's bytes, with the cache that is read at this batch and context for the plan's."""
    attends = "attention" in kernel.family or "attn" in kernel.ops
    if not attends or kernel.layer not in built.layers or kernel.flops == 0:
        return kernel.bytes
    was = built.cache_bytes(kernel.layer, size, planned)
    now = built.cache_bytes(kernel.layer, case.batch, context)
    return max(0, kernel.bytes - was + now)
