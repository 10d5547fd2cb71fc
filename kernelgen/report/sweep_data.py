"""Owns what a sweep's journal says, sorted for people: kernels, families at each size, faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelgen.report.sweep_steps import StepChoice, step_choices


@dataclass(frozen=True)
class KernelSweep:
    """One kernel at one size. Times in µs of one launch; None where nothing was measured."""

    id: str
    kernel: str
    family: str
    bucket: str
    chosen: bool
    """whether plans use it: else it belongs to a plan that might be as fast"""
    placements: int
    share: float
    """of the predicted step"""
    us: float | None
    before_us: float | None
    """with what builds take today"""
    modelled_us: float | None
    """with what the cost model alone would take"""
    predicted_us: float | None
    """what the cost model says of the winner"""
    ceiling_us: float
    before_verdict: str
    tile: Mapping[str, int]
    looked_at: int
    candidates: int
    bad: int
    flag: str


@dataclass(frozen=True)
class FamilySweep:
    """All kernels of a family at one size; shares of the ceiling are weighted by time."""

    family: str
    bucket: str
    kernels: int
    looked_at: int
    candidates: int
    bad: int
    flagged: int
    before: float | None
    after: float | None
    gain: float | None
    """time with today's tiles over time with the winners"""
    modelled: float | None
    """time with the tile that the cost model takes over time with the winner, each kernel alike"""


@dataclass(frozen=True)
class Fault:
    """A candidate that crashed, hung or was wrong."""

    kernel: str
    bucket: str
    candidate: str
    problem: str


@dataclass(frozen=True)
class PrunedTiles:
    """Tiles of a family that were not measured, over all its kernels."""

    family: str
    reason: str
    tiles: int
    example: str


@dataclass(frozen=True)
class SweepView:
    """A sweep as it is shown."""

    title: str
    device: str
    driver: str
    date: str
    kernels: tuple[KernelSweep, ...]
    families: tuple[FamilySweep, ...]
    pruned: tuple[PrunedTiles, ...]
    faults: tuple[Fault, ...]
    modelled: float | None
    """as `FamilySweep.modelled`, of all kernels"""
    in_steps: tuple[StepChoice, ...]
    """what whole steps decided"""


def read_sweep(lines: Iterable[Mapping[str, Any]]) -> SweepView:
    """Everything that the lines of a journal tell of finished groups."""
    lines = list(lines)
    begin = next((line for line in lines if line["kind"] == "begin"), {})
    machine: Mapping[str, Any] = next(
        (line["machine"] for line in lines if line["kind"] == "machine"), {}
    )
    told = {line["group"]: line for line in lines if line["kind"] == "group" and line.get("about")}
    bad = {
        (line["group"], line["candidate"]): str(line["bad"])
        for line in lines
        if line["kind"] == "coarse" and line.get("bad") and line["group"] in told
    }
    counts = Counter(group for group, _ in bad)
    kernels = tuple(_kernel(line, counts[line["group"]]) for line in told.values())
    models = dict.fromkeys(str(line["about"]["model"]) for line in told.values())
    names = {k.id: k for k in kernels}
    return SweepView(
        title=f"{', '.join(models) or 'nothing'} on {machine.get('device', 'no device')}",
        device=str(machine.get("device", "")),
        driver=str(machine.get("driver", "")),
        date=str(begin.get("date", "")),
        kernels=tuple(sorted(kernels, key=lambda k: (_place(k.bucket), -k.share))),
        families=_families(kernels),
        pruned=_pruned(told.values()),
        faults=tuple(
            Fault(names[group].kernel, names[group].bucket, candidate, problem)
            for (group, candidate), problem in bad.items()
        ),
        modelled=_modelled(kernels),
        in_steps=step_choices(lines, {k.id: (k.kernel, k.bucket) for k in kernels}),
    )


def _modelled(kernels: Iterable[KernelSweep]) -> float | None:
    """How much slower the cost model's own choices are, on average: 1.1 is 10%."""
    found = [k.modelled_us / k.us for k in kernels if k.us and k.modelled_us and not k.flag]
    return sum(found) / len(found) if found else None


def _kernel(line: Mapping[str, Any], bad: int) -> KernelSweep:
    about, row = line["about"], line.get("row") or {}
    return KernelSweep(
        id=line["group"],
        kernel=about["kernel"],
        family=about["family"],
        bucket=about["bucket"],
        chosen=about["chosen"],
        placements=about["placements"],
        share=about["share"],
        us=row.get("us"),
        before_us=line.get("in_use_us"),
        modelled_us=line.get("modelled_us"),
        predicted_us=about["predicted_us"],
        ceiling_us=about["ceiling_us"],
        before_verdict=about["before_verdict"],
        tile=row.get("choice", {}),
        looked_at=about["looked_at"],
        candidates=about["candidates"],
        bad=bad,
        flag=str(line.get("flag") or ""),
    )


def _families(kernels: Sequence[KernelSweep]) -> tuple[FamilySweep, ...]:
    groups: dict[tuple[str, str], list[KernelSweep]] = {}
    for kernel in kernels:
        groups.setdefault((kernel.family, kernel.bucket), []).append(kernel)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], _place(item[0][1])))
    return tuple(_family(*place, mine) for place, mine in ordered)


def _family(family: str, bucket: str, kernels: Sequence[KernelSweep]) -> FamilySweep:
    both = [k for k in kernels if k.us and k.before_us and not k.flag]
    weights = [max(1, k.placements) for k in both]
    ceiling = sum(w * k.ceiling_us for w, k in zip(weights, both, strict=True))
    before = sum(w * (k.before_us or 0.0) for w, k in zip(weights, both, strict=True))
    after = sum(w * (k.us or 0.0) for w, k in zip(weights, both, strict=True))
    return FamilySweep(
        family=family,
        bucket=bucket,
        kernels=len(kernels),
        looked_at=sum(k.looked_at for k in kernels),
        candidates=sum(k.candidates for k in kernels),
        bad=sum(k.bad for k in kernels),
        flagged=sum(bool(k.flag) for k in kernels),
        before=ceiling / before if before else None,
        after=ceiling / after if after else None,
        gain=before / after if after else None,
        modelled=_modelled(kernels),
    )


def _pruned(lines: Iterable[Mapping[str, Any]]) -> tuple[PrunedTiles, ...]:
    """Reasons differ by numbers from kernel to kernel: they count as one."""
    tiles: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], tuple[str, str]] = {}
    for line in lines:
        family = line["about"]["family"]
        for one in line["about"]["pruned"]:
            key = (family, "".join("#" if c.isdigit() else c for c in one["reason"]))
            tiles[key] += one["tiles"]
            examples.setdefault(key, (one["reason"], one["example"]))
    return tuple(
        PrunedTiles(key[0], examples[key][0], count, examples[key][1])
        for key, count in sorted(tiles.items(), key=lambda item: (item[0][0], -item[1], item[0]))
    )


def _place(bucket: str) -> tuple[str, int]:
    phase, _, size = bucket.partition(":")
    return phase, int(size)
