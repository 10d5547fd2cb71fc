"""The fit of the cost model: it finds what was put in, and is the same every time."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from planner_toys import EIGHT_B
from test_tables_planner import H200, NOTHING, down, graph_of, measured, modelled, planner, write

from kernelgen.codegen.families.fit_samples import judged_rows, row_samples
from kernelgen.core.jsonio import to_json
from kernelgen.tables import Tables
from kernelgen.tables.fit import BOUNDARY, Correction, DeviceFit, Sample, Scatter, fit
from kernelgen.tables.fit_file import fit_path, read_fit, tables_digest, write_fit
from kernelgen.tables.lookup import Doubt


def samples(
    family: str, count: int, memory: float, prep: float, add: float, noise: float = 0.0
) -> list[Sample]:
    """Times of kernels whose memory takes `memory` times as long as the model says, and so on."""
    dice = random.Random(f"{family} {count}")
    made = []
    for i in range(count):
        streamed = 2.0 * 1.3 ** (i % 16)
        parts = {"memory": streamed, "preparing rows": 0.25 * (i % 5) * streamed, BOUNDARY: 1.2}
        us = memory * parts["memory"] + prep * parts["preparing rows"] + 1.2 + add
        us *= 1 + noise * dice.uniform(-1, 1)
        made.append(Sample(family, f"v{i:03}", f"decode:{i + 1}", parts, us))
    return made


def test_scales_that_were_put_in_are_found() -> None:
    found = fit(samples("gemv", 30, 1.2, 1.5, 0.4)).families["gemv"]
    assert found.scales["memory"] == pytest.approx(1.2, abs=0.02)
    assert found.scales["preparing rows"] == pytest.approx(1.5, abs=0.1)
    assert found.add_us == pytest.approx(0.4, abs=0.1)
    assert BOUNDARY not in found.scales
    assert found.before.median > 0.15 and found.after.median < 0.02
    assert found.rows == 30


def test_unseen_rows_are_predicted_within_their_noise() -> None:
    found = fit(samples("gemv", 40, 1.3, 1.2, 0.2, noise=0.05)).families["gemv"]
    assert found.after.median <= 0.05 and found.after.p90 <= 0.08
    fresh = samples("gemv", 20, 1.3, 1.2, 0.2)
    told = Scatter.of((found.apply(s.parts), s.measured_us) for s in fresh)
    assert told.p90 <= 0.05


def test_few_rows_stay_near_all_rows_and_no_rows_take_those_of_all() -> None:
    many, one = samples("skinny", 30, 1.25, 1.0, 0.0), samples("gemv", 1, 3.0, 1.0, 0.0)
    made = fit([*many, *one])
    assert made.families["gemv"].scales["memory"] < 2.2  # one row does not make a slope of 3
    assert made.families["skinny"].scales["memory"] == pytest.approx(1.25, abs=0.03)
    rows = made.of("rows")
    assert rows.rows == 0 and rows.scales == made.whole.scales
    parts = many[10].parts
    assert "31 rows of other families" in made.told("rows", parts)
    assert made.told("skinny", parts).startswith("model × 1.2")
    assert "fitted on 30 rows, error 1%" in made.told("skinny", parts)


def test_the_fit_does_not_depend_on_the_order() -> None:
    given = samples("skinny", 20, 1.1, 1.4, 0.1, 0.1) + samples("gemv", 9, 0.9, 1.0, 0.0, 0.2)
    first = fit(given)
    for seed in range(3):
        random.Random(seed).shuffle(given)
        assert to_json(fit(given)) == to_json(first)


def test_a_correction_never_makes_time_vanish() -> None:
    none = Scatter(0.0, 0.0)
    assert Correction({"memory": 0.05}, -5.0, 3, none, none).apply({"memory": 10.0}) == 2.0


def test_fits_are_read_back_and_damaged_ones_are_one_line(tmp_path: Path) -> None:
    path = fit_path(tmp_path, "sm_90", "h200")
    made = fit(samples("gemv", 5, 1.2, 1.0, 0.0), "a digest")
    write_fit(path, made)
    assert read_fit(path) == (made, ())
    good = json.loads(path.read_text())
    bad: list[Any] = [
        "{",
        [],
        good | {"schema": 2},
        good | {"whole": good["whole"] | {"scales": {"memory": 0.0}}},
        good | {"surprise": 1},
    ]
    for data in bad:
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        found, problems = read_fit(path)
        assert found is None and len(problems) == 1 and "\n" not in problems[0]
        tables = Tables(tmp_path)
        assert tables.fit("sm_90", "h200") is None and len(tables.problems) == 1


def test_what_nobody_measured_no_longer_wins_by_being_believed(tmp_path: Path) -> None:
    """Kernels as measured take 1.5 times what the model says. Without a fit the planner leaves them
    for any other cut; with it, it stays."""
    plan = modelled(EIGHT_B, "decode", 8)
    rows = [measured(x, plan, H200, us=1.5 * x.price.us) for x in plan.launches]
    tables = write(tmp_path, rows)
    without = planner(plan.graph, H200, tables).plan("decode", 8)
    assert without.coverage()["modelled"]["share"] > 0.3
    found = list(row_samples(plan.graph, H200, tables))
    assert len(found) == len({(r.family, r.variant) for r in rows})
    write_fit(fit_path(tmp_path, "sm_90", "h200"), fit(found))
    fitted = planner(plan.graph, H200, Tables(tmp_path)).plan("decode", 8)
    assert fitted.coverage()["exact"]["share"] > 0.9
    assert fitted.predicted_us == pytest.approx(1.5 * plan.predicted_us, rel=0.05)


def test_modelled_prices_say_how_they_were_corrected(tmp_path: Path) -> None:
    plan = modelled(EIGHT_B, "decode", 32)
    write_fit(fit_path(tmp_path, "sm_90", "h200"), fit(samples("skinny", 30, 1.18, 1.0, 0.0)))
    price = down(planner(plan.graph, H200, Tables(tmp_path)).plan("decode", 32)).price
    assert price.verdict == "modelled"
    (told,) = [limit for limit in price.limits if limit.startswith("model × ")]
    assert "fitted on 30 rows, error " in told
    assert price.us == pytest.approx(1.18 * (down(plan).price.us - 1.2) + 1.2, rel=0.02)


def test_stale_rows_are_in_no_fit_and_are_told(tmp_path: Path) -> None:
    plan = modelled(EIGHT_B, "decode", 8)
    rows = [measured(x, plan, H200, source="0" * 64) for x in plan.launches[:4]]
    tables = write(tmp_path, rows)
    assert not list(row_samples(plan.graph, H200, tables))
    judged = list(judged_rows(plan.graph, H200, tables))
    assert judged and {why for _, why in judged} == {Doubt(stale=True)}


def test_the_digest_of_tables_changes_with_rows_only(tmp_path: Path) -> None:
    plan = modelled(EIGHT_B, "decode", 8)
    write(tmp_path, [measured(down(plan), plan, H200)])
    before = tables_digest(tmp_path, "sm_90", "h200")
    write_fit(fit_path(tmp_path, "sm_90", "h200"), fit([], before))
    assert tables_digest(tmp_path, "sm_90", "h200") == before
    write(tmp_path, [measured(down(plan), plan, H200, samples=51)])
    assert tables_digest(tmp_path, "sm_90", "h200") != before


def test_the_shipped_fit_is_of_the_shipped_rows() -> None:
    """`kernelgen tables fit` after a sweep, after a change of the cost model, and after one of
    generated code."""
    from kernelgen.cli.table_models import devices_with_rows
    from kernelgen.core.resources import tables_dir

    tables = Tables(tables_dir())
    for sm, device in devices_with_rows(tables, None):
        made = tables.fit(sm, device)
        assert isinstance(made, DeviceFit)
        assert made.tables == tables_digest(tables.folder, sm, device), "kernelgen tables fit"
    assert not tables.problems


def test_models_without_rows_have_no_samples() -> None:
    assert not list(row_samples(graph_of(EIGHT_B), H200, Tables(NOTHING)))
