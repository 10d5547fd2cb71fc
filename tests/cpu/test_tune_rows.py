"""Rows of a sweep are what a build reads: the same key, the same tile, the same code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from planner_toys import EIGHT_B, ONE_B, SMALL, Shape, decoder

from kernelgen.archs.registry import builtin_models
from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import lowered
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.families.triton_family import TritonFamily
from kernelgen.codegen.step_args import args_layout
from kernelgen.codegen.triton.kernels import StepLayout
from kernelgen.hw import parse_target
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Graph
from kernelgen.planner.caches import cache_schema
from kernelgen.planner.family import Refusal
from kernelgen.planner.planner import MAX_ROWS, Planner
from kernelgen.tables import Bucket, Row, Tables
from kernelgen.tables.row import Clocks
from kernelgen.tune.bundle import Bundle, Candidate, Group
from kernelgen.tune.collecting import group_of
from kernelgen.tune.compiling import Compiled
from kernelgen.tune.facts import device_facts
from kernelgen.tune.groups import ModelGroups, Planned
from kernelgen.tune.measurer import Canary, Machine
from kernelgen.tune.rows import bring, ceiling_us, row_of, rows_in
from kernelgen.tune.selection import EFFORTS, select
from kernelgen.tune.spaces import Point, Space, families, space_of

H200 = parse_target("sm_90:h200")
NOTHING = Tables(Path("no rows"))
SHAPES = {"eight_b": EIGHT_B, "one_b": ONE_B, "small": SMALL}


def groups_of(graph: Graph, device: Device, effort: str = "quick") -> ModelGroups:
    """Groups of a model with nothing measured yet."""
    cache = cache_schema(graph.caches)
    layout = StepLayout(cache, args_layout(cache, 8192, MAX_ROWS, 40960))
    return ModelGroups(graph, device, layout, NOTHING, effort, 1.15)


def written(planned: Planned, device: Device, which: int) -> Row:
    """The row that a sweep writes if the tile of that number wins: everything but the time."""
    tile = planned.tiles[which % len(planned.tiles)]
    nothing = {unit.name: "not compiled" for t in planned.tiles for unit in t.units}
    group = group_of(planned, "toy", Compiled({}, nothing), {})
    choice = dict(tile.selected.point.choice)
    won = Candidate(choice, (), 0, 0, tile.source, 1.0, "fast")
    bundle = Bundle(
        1, "kernelgen 0", "w" * 64, "quick", device_facts(device), {"triton": "3.6.0"}, (), ()
    )
    machine = Machine(device.name, "580", "2.11", Canary(4000.0, 1980, 3201))
    us = planned.price.us * 0.5
    return row_of(bundle, group, won, [us] * 9, 0.25, machine, [machine.canary], "2026-11-30")


@cache
def _graph(name: str) -> Graph:
    shape = SHAPES.get(name)
    return decoder(shape) if isinstance(shape, Shape) else lowered(resolve(name), "bfloat16").graph


MODELS = sorted(builtin_models())
CASES = [(name, "decode:8") for name in MODELS]
CASES += [(name, size) for name in MODELS[::4] for size in ("decode:1", "mixed:512")]


@pytest.mark.parametrize(("name", "bucket"), CASES)
def test_what_a_sweep_writes_is_what_a_build_reads(name: str, bucket: str, tmp_path: Path) -> None:
    graph = _graph(name)
    place = Bucket.parse(bucket)
    planned = groups_of(graph, H200).at(place)
    rows = {row.key: row for p in planned for row in [written(p, H200, 1)]}
    bring(list(rows.values()), tmp_path)
    tables = Tables(tmp_path)
    plan = Planner(graph, H200, H200.target, catalogue(H200, tables)).plan(place.phase, place.size)
    assert not tables.problems
    # What reads states of requests has no space, and is modelled.
    swept = [
        x
        for x in plan.launches
        if x.kernel.match.family.name in families()
        and not isinstance(
            space_of(x.kernel.match, _sizes(plan.graph, x, plan.sizes), H200), Refusal
        )
    ]
    used = Counter(launch.price.verdict for launch in swept)
    for launch in plan.launches:
        match = launch.kernel.match
        assert isinstance(match.family, TritonFamily)
        key = match.family.key(match, _sizes(plan.graph, launch, plan.sizes), H200)
        if key in rows:
            assert str(launch.price.verdict) == "exact", (launch.kernel.name, launch.price.notes)
            assert dict(launch.price.choice) == dict(rows[key].choice)
    assert used["exact"] >= 0.9 * sum(used.values()), used


def _sizes(graph, launch, sizes):  # type: ignore[no-untyped-def]
    block = launch.kernel.match.region.network.block
    number = next(i for i, b in enumerate(graph.blocks) if b is block)
    return Planner(graph, H200, "", ()).block_sizes(number, sizes)


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_100", "sm_120"])
def test_keys_are_the_same_on_every_target(target: str) -> None:
    device = parse_target(target)
    for place in (Bucket("decode", 8), Bucket("mixed", 512)):
        groups = groups_of(_graph("small"), device)
        for planned in groups.at(place):
            match = planned.kernel.match
            assert isinstance(match.family, TritonFamily)
            row = written(planned, device, 0)
            assert row.key == match.family.key(match, planned.sizes, device)


def test_a_chosen_tile_is_measured_wherever_it_comes_from(tmp_path: Path) -> None:
    """What builds take today is a candidate even where it is no point of the space."""
    graph = _graph("small")
    first = next(p for p in groups_of(graph, H200).at(Bucket("decode", 1)) if p.chosen)
    row = written(first, H200, 2)
    bring([row], tmp_path)
    again = groups_of(graph, H200)
    again.tables = Tables(tmp_path)
    same = next(p for p in again.at(Bucket("decode", 1)) if p.key == first.key)
    assert str(same.before.verdict) == "exact"
    assert dict(row.choice) in [dict(t.selected.point.choice) for t in same.tiles]


def test_only_what_lacks_a_row_is_measured_where_that_is_asked(tmp_path: Path) -> None:
    place = Bucket("decode", 1)
    planned = groups_of(_graph("small"), H200).at(place)
    done = [written(p, H200, 0) for p in planned[::2]]
    bring([*done, replace(written(planned[1], H200, 0), source="0" * 64)], tmp_path)
    again = groups_of(_graph("small"), H200)
    again.tables, again.missing = Tables(tmp_path), True
    have = {(row.family, row.variant, row.bucket) for row in done}
    expected = {p.key for p in planned} - have
    # Rows may make builds use other kernels, which are measured too; none that has a row is.
    found = {p.key for p in again.at(place)}
    assert expected <= found and not found & have


def test_decode_attention_is_measured_at_three_contexts_and_with_a_window_at_one() -> None:
    from kernelgen.codegen.families.triton_decode import decode_problem

    seen = set()
    for name in MODELS:
        groups = groups_of(_graph(name), H200)
        groups.families = frozenset({"attention_decode", "sample"})
        for planned in groups.at(Bucket("decode", 8)):
            match = planned.kernel.match
            if match.family.name != "attention_decode":
                assert planned.elsewhere == ()
                continue
            window = decode_problem(match.region, match.roles, planned.sizes).window
            assert planned.elsewhere == (() if window else (128, 8192))
            seen.add(window)
    assert seen == {False, True}


def _space(count: int) -> Space:
    points = tuple(
        Point(
            {"outputs": 1 << (i % 3), "depth": 256, "warps": 1 + i}, 10.0 + i, f"tile {i}", 10.0 + i
        )
        for i in range(count)
    )
    return Space(points, {"no room": (7, "tile x")}, count + 7, dict(points[2].choice))


@pytest.mark.parametrize("effort", [name for name, count in EFFORTS.items() if count > 1])
@pytest.mark.parametrize("count", [3, 8, 40])
def test_every_tile_is_measured_or_pruned_for_a_reason(effort: str, count: int) -> None:
    space = _space(count)
    before = dict(space.points[-1].choice)
    chosen, pruned = select("gemv", space, effort, before)
    texts = [s.point.text for s in chosen]
    assert len(set(texts)) == len(texts) <= EFFORTS[effort]
    assert chosen[0].point is space.points[2] and chosen[0].why == "model's best"
    assert before in [dict(s.point.choice) for s in chosen]
    assert any(s.point is space.points[0] for s in chosen), "the fastest by the model"
    if effort == "full":
        assert len(chosen) == count
    reasons = {p.reason: p.tiles for p in pruned}
    assert reasons["no room"] == 7
    assert sum(reasons.values()) + len(chosen) == space.looked_at


def test_the_tile_in_use_is_kept() -> None:
    space = _space(8)
    before = dict(space.points[-1].choice)
    chosen, pruned = select("gemv", space, "kept", before)
    assert [dict(s.point.choice) for s in chosen] == [before] and chosen[0].why == "in use"
    assert sum(p.tiles for p in pruned) + 1 == space.looked_at
    (alone,), _ = select("gemv", space, "kept", {})
    assert alone.point is space.points[2] and alone.why == "model's best"


def test_more_effort_measures_more() -> None:
    space = _space(40)
    counts = [len(select("gemv", space, effort, {})[0]) for effort in ("quick", "normal", "full")]
    assert counts == sorted(counts) and counts[0] < counts[1] < counts[2]


def _group(**changes: object) -> Group:
    from tune_toys import group

    return replace(group(0), **changes)  # type: ignore[arg-type]


def test_the_ceiling_is_the_slower_of_memory_and_arithmetic() -> None:
    facts = device_facts(H200)
    memory = _group(bytes=int(facts.read_gb_s * 1e3), flops=1)
    assert ceiling_us(facts, memory) == pytest.approx(1.0, rel=1e-3)
    math = _group(bytes=1, flops=int(facts.tflops["bfloat16"] * 1e6))
    assert ceiling_us(facts, math) == pytest.approx(1.0, rel=1e-3)


def test_flagged_groups_and_broken_rows_are_not_brought() -> None:
    planned = next(iter(groups_of(_graph("small"), H200).at(Bucket("decode", 1))))
    row = written(planned, H200, 0)
    from kernelgen.core.jsonio import to_json

    line = {"kind": "group", "group": "g", "row": to_json(row), "flag": ""}
    assert rows_in([line]) == ((row,), ())
    assert rows_in([line | {"flag": "disturbed"}, line | {"row": None}]) == ((), ())
    assert row.clocks == Clocks(1980, 1980, 3201, 3201)
