"""What a sweep writes is what a build reads, and what planners make of what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from planner_toys import EIGHT_B, ONE_B, SMALL, Shape, decoder
from table_rows import row_of

from kernelgen.archs.registry import builtin_models
from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import lowered
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.families.triton_family import Quote, TritonFamily
from kernelgen.codegen.triton import expressions
from kernelgen.codegen.triton import source as source_module
from kernelgen.codegen.triton.source import source_digest
from kernelgen.hw import parse_target
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Graph
from kernelgen.planner.plan import Launch, Plan
from kernelgen.planner.planner import Planner
from kernelgen.tables import Row, Tables, write_rows
from kernelgen.tables.file import table_path

H200 = parse_target("sm_90:h200")
SMS = ["sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"]
SIZES = (("decode", 32), ("mixed", 512))
NOTHING = Path("no rows")


def planner(
    graph: Graph, device: Device, tables: Tables, *, rings: bool = False, **how: Any
) -> Planner:
    """Without rings, which have neither scratch nor counters, unless they are asked for."""
    families = [f for f in catalogue(device, tables, **how) if rings or f.name != "ring"]
    return Planner(graph, device, device.target, families)


def measured(launch: Launch, plan: Plan, device: Device, **changes: Any) -> Row:
    """The row that a sweep over a plan would write for one of its kernels."""
    match = launch.kernel.match
    assert isinstance(match.family, TritonFamily)
    sizes = Planner(plan.graph, device, "", ()).block_sizes(_block(plan, launch), plan.sizes)
    key = match.family.key(match, sizes, device)
    choice = dict(launch.price.choice)
    found = {
        "sm": key.sm,
        "device": key.device,
        "family": key.family,
        "variant": key.variant,
        "bucket": str(key.bucket),
        "choice": choice,
        "us": launch.price.us * 0.9,
        "us_p10": None,
        "us_p90": None,
        "source": source_digest(launch.kernel, choice),
    }
    return row_of(**(found | changes))


def _block(plan: Plan, launch: Launch) -> int:
    block = launch.kernel.match.region.network.block
    return next(i for i, b in enumerate(plan.graph.blocks) if b is block)


def write(root: Path, rows: Iterable[Row]) -> Tables:
    """A folder with these rows, freshly opened."""
    files: dict[Path, dict[Any, Row]] = {}
    for row in rows:
        files.setdefault(table_path(root, row.sm, row.device, row.family), {})[row.key] = row
    for path, found in files.items():
        write_rows(path, found.values())
    return Tables(root)


@cache
def graph_of(model: str | Shape) -> Graph:
    return lowered(resolve(model), "bfloat16").graph if isinstance(model, str) else decoder(model)


@cache
def modelled(model: str | Shape, phase: str, size: int) -> Plan:
    return planner(graph_of(model), H200, Tables(NOTHING)).plan(phase, size)


@pytest.mark.parametrize("model", [*builtin_models(), SMALL], ids=str)
def test_builds_of_every_model_for_every_sm_read_what_a_sweep_writes(
    model: str | Shape, tmp_path: Path
) -> None:
    graph = graph_of(model)
    first = planner(
        graph, H200, Tables(NOTHING), rings=True
    )  # what it searches does not depend on the device
    plans: list[tuple[Device, Plan]] = []
    for first.device in (parse_target(sm) for sm in SMS):
        sizes = SIZES if first.device == H200 else SIZES[:1]
        plans += [(first.device, first.plan(phase, size)) for phase, size in sizes]
    tables = write(tmp_path, (measured(x, p, d) for d, p in plans for x in p.launches))
    again = planner(graph, H200, tables, rings=True, require_tuned=True)
    for again.device, plan in plans:
        found = again.plan(plan.phase, plan.size)
        assert found.coverage().keys() == {"exact"}
        assert [x.price.choice for x in found.launches] == [x.price.choice for x in plan.launches]
        assert found.predicted_us == pytest.approx(0.9 * plan.predicted_us)
    assert not tables.problems


def down(plan: Plan) -> Launch:
    return next(x for x in plan.launches if "mlp.down" in x.kernel.ops)


def test_a_measured_tile_gets_the_scratch_that_it_needs(tmp_path: Path) -> None:
    """The model may have chosen a tile without partial sums, and those of the row need room."""
    plan = modelled(EIGHT_B, "decode", 32)
    launch = down(plan)
    family = launch.kernel.match.family
    assert isinstance(family, TritonFamily) and family.name == "skinny"
    for splits in (1, 2, 4, 8):
        choice = dict(launch.price.choice) | {"splits": splits}
        row = measured(launch, plan, H200, choice=choice, us=1.0)
        row = replace(row, source=source_digest(launch.kernel, choice))
        found = down(planner(plan.graph, H200, write(tmp_path, [row])).plan("decode", 32))
        assert (found.price.verdict, found.price.choice) == ("exact", choice)
        tiles = -(-4096 // choice["outputs"])
        sums = splits * tiles * choice["rows"] * choice["outputs"] * 4
        assert found.price.scratch_bytes >= (sums if splits > 1 else 0)
        assert found.price.counters == tiles


def test_a_quote_of_the_models_own_choice_is_the_models_quote() -> None:
    seen = set()
    for size in (1, 8, 64):
        for launch in modelled(EIGHT_B, "decode", size).launches:
            seen.add(_same_quote(launch, modelled(EIGHT_B, "decode", size)))
    for launch in modelled(EIGHT_B, "mixed", 512).launches:
        seen.add(_same_quote(launch, modelled(EIGHT_B, "mixed", 512)))
    assert {"gemv", "skinny", "rows", "head_sample", "attention_decode"} <= seen
    assert seen & {"gemm", "gemm_tma"}


def _same_quote(launch: Launch, plan: Plan) -> str:
    match = launch.kernel.match
    family = match.family
    assert isinstance(family, TritonFamily)
    sizes = Planner(plan.graph, H200, "", ()).block_sizes(_block(plan, launch), plan.sizes)
    free = family.quote(match.region, match.roles, sizes, H200)
    bound = family.quote(match.region, match.roles, sizes, H200, launch.price.choice)
    assert isinstance(free, Quote) and isinstance(bound, Quote)
    assert bound.us(H200) == pytest.approx(free.us(H200))
    assert sum(bound.parts(H200).values()) == pytest.approx(bound.us(H200))
    facts = ("scratch_bytes", "counters", "bytes", "flops", "passes")
    assert [getattr(bound, f) for f in facts] == [getattr(free, f) for f in facts]
    return family.name


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rows": 16}, "32 rows in a tile of 16"),
        ({"outputs": 48}, "outputs cannot be 48"),
        ({"warps": 0}, "warps cannot be 0"),
        ({"depth": -64}, "depth cannot be -64"),
        ({"stages": 64}, "shared"),
    ],
    ids=str,
)
@pytest.mark.parametrize("current", [True, False], ids=["code of today", "other code"])
def test_an_illegal_tile_is_told_once_and_not_used(
    change: Mapping[str, int], reason: str, current: bool, tmp_path: Path
) -> None:
    plan = modelled(EIGHT_B, "decode", 32)
    good = dict(down(plan).price.choice)
    bad = good | dict(change)
    row = measured(down(plan), plan, H200, choice=bad, us=1.0)
    if current:
        with suppress(ArithmeticError, ValueError):  # some such tiles have no code at all
            row = replace(row, source=source_digest(down(plan).kernel, bad))
    tables = write(tmp_path, [row])
    made = planner(plan.graph, H200, tables)
    for size in (32, 32):
        found = down(made.plan("decode", size))
        assert found.price.choice == good
    assert found.price.verdict == "modelled"
    (problem,) = tables.problems
    assert f"{tmp_path}/sm_90/h200/skinny.jsonl: line 1: " in problem
    assert reason in problem and "is not used" in problem


def test_a_row_of_another_backend_is_told(tmp_path: Path) -> None:
    plan = modelled(EIGHT_B, "decode", 32)
    tables = write(tmp_path, [measured(down(plan), plan, H200, backend="cutlass")])
    found = down(planner(plan.graph, H200, tables).plan("decode", 32))
    assert found.price.verdict == "modelled"
    (problem,) = tables.problems
    assert "it is one of cutlass, and skinny is of triton" in problem


def test_an_illegal_neighbour_is_told_where_it_would_be_interpolated_from(tmp_path: Path) -> None:
    plan = modelled(EIGHT_B, "decode", 32)
    bad = dict(down(plan).price.choice) | {"warps": 0}
    rows = [
        measured(down(plan), plan, H200, bucket="decode:24", choice=bad, us=0.01),
        measured(down(plan), plan, H200, bucket="decode:48", us=9.0),
    ]
    tables = write(tmp_path, rows)
    assert down(planner(plan.graph, H200, tables).plan("decode", 32)).price.verdict == "modelled"
    (problem,) = tables.problems
    assert "warps cannot be 0" in problem and "at decode:24" in problem


def test_a_tile_of_other_fields_is_stale(tmp_path: Path) -> None:
    """It was measured with another version of the kernel, which had other parameters."""
    plan = modelled(EIGHT_B, "decode", 32)
    row = measured(down(plan), plan, H200)
    tables = write(tmp_path, [replace(row, choice={"tile_k": 64})])
    assert down(planner(plan.graph, H200, tables).plan("decode", 32)).price.verdict == "stale"
    assert not tables.problems
    (warning,) = tables.warnings()
    assert "rows of sm_90:h200 are stale" in warning and "skinny 1" in warning


def test_code_that_has_changed_makes_a_row_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another spelling of one function in a printer: templates are as they were."""
    plan = modelled(EIGHT_B, "decode", 32)
    tables = write(tmp_path, (measured(x, plan, H200) for x in plan.launches))
    assert planner(plan.graph, H200, tables).plan("decode", 32).coverage().keys() == {"exact"}
    monkeypatch.setattr(source_module, "_KNOWN", {})
    monkeypatch.setitem(expressions._SPELLED, "silu", lambda a: f"({a} * tl.sigmoid({a}))")
    found = planner(plan.graph, H200, Tables(tmp_path)).plan("decode", 32)
    verdicts = {x.price.verdict for x in found.launches if "mlp.act" in x.kernel.ops}
    assert verdicts == {"stale"} and set(found.coverage()) == {"exact", "stale"}
    stale = next(x.price for x in found.launches if x.price.verdict == "stale")
    assert any("changed since it was measured" in limit for limit in stale.limits)


def test_the_digest_does_not_see_names_and_comments() -> None:
    plan = modelled(EIGHT_B, "decode", 32)
    launch = down(plan)
    digest = source_digest(launch.kernel, launch.price.choice)
    renamed = replace(launch.kernel, name="something_else")
    source_module._KNOWN.clear()
    assert source_digest(renamed, launch.price.choice) == digest
    other = dict(launch.price.choice) | {"stages": 2}
    assert source_digest(launch.kernel, other) != digest


def test_equal_variants_of_two_models_have_one_digest() -> None:
    """The layers of these two differ in depth and context, not in the kernels below."""
    a, b = decoder(replace(ONE_B)), decoder(replace(ONE_B, layers=7))
    digests = []
    for graph in (a, b):
        source_module._KNOWN.clear()
        plan = planner(graph, H200, Tables(NOTHING)).plan("decode", 32)
        digests.append(
            {
                (x.kernel.match.family.name, x.kernel.match.variant): source_digest(
                    x.kernel, x.price.choice
                )
                for x in plan.launches
            }
        )
    assert digests[0] == digests[1]


def test_a_context_that_nobody_measured_is_modelled(tmp_path: Path) -> None:
    plan = modelled(EIGHT_B, "decode", 32)
    tables = write(tmp_path, (measured(x, plan, H200) for x in plan.launches))
    far = planner(plan.graph, H200, tables)
    far.context = 8192
    found = {x.kernel.match.family.name: x.price for x in far.plan("decode", 32).launches}
    assert found["attention_decode"].verdict == "modelled"
    assert found["skinny"].verdict == "exact"


def test_where_rows_are_required_a_measured_plan_beats_faster_modelled_ones(tmp_path: Path) -> None:
    plan = modelled(EIGHT_B, "decode", 32)
    slow = [measured(x, plan, H200, us=10 * x.price.us) for x in plan.launches]
    tables = write(tmp_path, slow)
    free = planner(plan.graph, H200, tables).plan("decode", 32)
    assert free.coverage().keys() != {"exact"}
    required = planner(plan.graph, H200, tables, require_tuned=True).plan("decode", 32)
    assert required.coverage().keys() == {"exact"}
    few = write(tmp_path / "few", slow[:3])
    lacking = planner(plan.graph, H200, few, require_tuned=True).plan("decode", 32)
    assert "refused" in lacking.coverage()


def test_a_sibling_lends_tiles_and_times_scaled_by_the_model(tmp_path: Path) -> None:
    plan = modelled(EIGHT_B, "decode", 1)
    rows = [measured(x, plan, H200, us=x.price.us) for x in plan.launches]
    tables = write(tmp_path, rows)
    h100 = parse_target("sm_90:h100")
    assert planner(plan.graph, h100, tables).plan("decode", 1).coverage().keys() == {"modelled"}
    declared = {"schema": 1, "source": "h200", "why": "the same multiprocessors"}
    place = tmp_path / "sm_90" / "h100" / "INHERITS.json"
    place.parent.mkdir()
    place.write_text(json.dumps(declared))
    found = planner(plan.graph, h100, Tables(tmp_path)).plan("decode", 1)
    assert set(found.coverage()) <= {"inherited", "modelled"} and "inherited" in found.coverage()
    mine, theirs = down(found).price, down(plan).price
    assert mine.verdict == "inherited" and mine.choice == theirs.choice
    assert 1.2 < mine.us / theirs.us < 2.0  # memory is slower there by 4590 / 2948
