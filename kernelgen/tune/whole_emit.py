"""Owns whole steps as a bundle has them: the plan of today, and which of its kernels are tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kernelgen.codegen.cuda.carveout import rings, streams
from kernelgen.codegen.cuda.host import step_value_places
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.weights import BoundWeight, bound_weights, demanded_layouts
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Graph
from kernelgen.planner.plan import Launch as PlannedLaunch
from kernelgen.planner.plan import Operand, Plan
from kernelgen.planner.planner import Planner
from kernelgen.tables import Bucket, Tables
from kernelgen.tune.bundle import Extents, Given, Launch, StepFacts, Use, WeightFacts
from kernelgen.tune.groups import Planned

LEAST_SHARE = 0.02
"""of the step: kernels with less are not tried, since no step would show the difference"""
Key = tuple[str, str, str]


def plans_of(
    graph: Graph, device: Device, tables: Tables, buckets: Sequence[Bucket]
) -> dict[Bucket, Plan]:
    """What a build would do today at each size."""
    planner = Planner(graph, device, device.target, catalogue(device, tables))
    return {bucket: planner.plan(bucket.phase, bucket.size) for bucket in buckets}


def key_of(launch: PlannedLaunch, bucket: Bucket) -> Key:
    """As `Planned.key`."""
    match = launch.kernel.match
    return (match.family.name, match.variant, str(bucket))


def in_steps(
    planned: Sequence[Planned], plans: Mapping[Bucket, Plan], families: frozenset[str]
) -> tuple[Planned, ...]:
    """The plans' kernels alone: with all their tiles those that are tried, else with today's."""
    times = {b: Counter(key_of(one, b) for one in plan.launches) for b, plan in plans.items()}
    found = []
    for one in planned:
        count = times[one.bucket][one.key]
        if not count:
            continue
        share = one.before.us * count / plans[one.bucket].predicted_us
        tried = share >= LEAST_SHARE and (not families or one.key[0] in families)
        today = [t for t in one.tiles if dict(t.selected.point.choice) == dict(one.before.choice)]
        tiles = one.tiles if tried else tuple(today)
        found.append(replace(one, tiles=tiles, chosen=True, placements=count))
    return tuple(found)


def step_facts(
    plan: Plan,
    bucket: Bucket,
    planned: Sequence[Planned],
    prepare: Sequence[Launch],
    args: ArgsLayout,
    name: Callable[[Key], str],
) -> StepFacts:
    """The step of a plan whose kernels are `planned`; `name` gives the id of a kernel's group."""
    places = step_value_places(args)
    mine = [one for one in planned if one.bucket == bucket]
    tried = sorted((p for p in mine if len(p.tiles) > 1), key=lambda p: -p.before.us * p.placements)
    return StepFacts(
        model=plan.graph.name,
        bucket=str(bucket),
        extents=Extents.of(plan.sizes),
        prepare=tuple(prepare),
        uses=tuple(
            Use(
                name(key_of(launch, bucket)),
                launch.layer,
                tuple(_given(operand, places[-1]) for operand in launch.operands),
            )
            for launch in plan.launches
        ),
        tried=tuple(name(p.key) for p in tried),
        weights=tuple(_weight(w) for w in bound_weights(plan.graph, demanded_layouts([plan]))),
        values=(places[0], places[1], places[2]),
        workspace_bytes=places[-1] + plan.workspace_bytes,
        streams=streams(plan),
        rings=rings(plan),
    )


def _given(operand: Operand, first: int) -> Given:
    assert operand.kind in ("buffer", "bound", "weight", "state", "step")
    number = first + operand.offset_bytes if operand.kind == "buffer" else 0
    return Given(operand.kind, operand.name, number)  # type: ignore[arg-type]


def _weight(weight: BoundWeight) -> WeightFacts:
    stored = weight.format.name if weight.format else ""
    return WeightFacts(weight.name, weight.dtype, weight.matrix, stored)
