"""`kernelgen tables`, `--require-tuned` and the coverage that builds and plans print."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from table_rows import row, write
from test_tables_planner import H200, measured, modelled
from test_tables_planner import write as write_tables

from kernelgen.cli.app import main
from kernelgen.core.resources import tables_dir
from kernelgen.report.tuning_text import coverage_lines, phase_coverage

MODEL = "smollm2-135m-instruct"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(str(caught.value.code)), out, err


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """A copy of the tables that ship."""
    copy = tmp_path / "tables"
    shutil.copytree(tables_dir(), copy)
    return copy


def test_shipped_tables_pass(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tables", "check")
    assert code == 0 and "usable rows" in out


def test_every_kind_of_damage_is_one_line_and_fails_the_check(
    shipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = next(iter(sorted(shipped.glob("sm_90/h200/*.jsonl"))))
    lines = first.read_text().splitlines()
    foreign = json.dumps(json.loads(lines[0]) | {"sm": "sm_100"})
    future = json.dumps(json.loads(lines[0]) | {"schema": 9})
    first.write_text("\n".join([*lines, lines[0], foreign, future, "not a row", lines[0][:80]]))
    write(shipped, row(family="rows2"), place="sm_90/h200/rows2")
    write(shipped, row(device="h300"), place="sm_90/h300/linear")
    (shipped / "sm_90" / "h20").mkdir()
    (shipped / "sm_90" / "h20" / "INHERITS.json").write_text('{"schema": 1, "source": "h7"}')
    code, _, err = run(capsys, "tables", "check", "--tables", str(shipped))
    assert code == 1
    for told in (
        f"line {len(lines) + 1}: repeats line 1",
        "a row of sm_100/h200",
        "schema 9 is newer",
        "not JSON",
        "was made for other rows",
        "no device of sm_90 that we know",
        "has no section ## made up for a test",
        "why: is missing",
    ):
        assert told in err, told
    assert "Traceback" not in err


def test_show_lists_rows_and_the_fit(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tables", "show", "--target", "sm_90", "--family", "rows")
    assert code == 0 and "rows 1, width" in out and "gemv" not in out
    code, out, _ = run(capsys, "tables", "show", "--fit")
    assert code == 0 and "predicted against measured" in out and "memory × " in out
    code, out, _ = run(capsys, "tables", "show", "--fit", "--json")
    assert json.loads(out)["families"]
    code, _, err = run(capsys, "tables", "show", "--target", "sm_80")
    assert code == 2 and "no rows of sm_80" in err and "sm_90:h200" in err


def test_diff_says_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same, gone, new = (row(bucket=f"decode:{n}") for n in (1, 2, 4))
    write(tmp_path / "a", row(), same, gone)
    write(tmp_path / "b", row(us=9.2, choice={"rows": 4}), same, new)
    code, out, _ = run(capsys, "tables", "diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert code == 0
    assert "8.9 → 9.2 µs (+3.4%), outputs 2, tile_k 2048 → rows 4" in out
    assert "- sm_90:h200 linear decode:2" in out and "+ sm_90:h200 linear decode:4" in out
    assert out.endswith("1 added, 1 removed, 1 changed, 1 the same\n")
    code, _, err = run(capsys, "tables", "diff", str(tmp_path / "a"), str(tmp_path / "c"))
    assert code == 2 and "no such file or folder" in err


def test_fit_is_kept_beside_the_rows(shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = modelled(MODEL, "decode", 8)
    write_tables(shipped, (measured(x, plan, H200) for x in plan.launches))
    place = shipped / "sm_90" / "h200" / "FIT.json"
    place.unlink()
    where = ("--tables", str(shipped))
    code, out, _ = run(capsys, "tables", "fit", MODEL, *where)
    assert code == 0 and "sliced" in out
    first = place.read_bytes()
    run(capsys, "tables", "fit", MODEL, *where)
    assert place.read_bytes() == first


def test_untuned_kernels_are_refused_in_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = modelled(MODEL, "decode", 8)
    rows = [measured(x, plan, H200) for x in plan.launches]
    tables = tmp_path / "tables"
    write_tables(tables, rows)
    asked = ("plan", MODEL, "--target", "sm_90:h200", "--tables", str(tables), "--require-tuned")
    code, out, _ = run(capsys, *asked, "--batch", "8")
    assert code == 0 and "times by launches (share of time): exact" in out
    code, out, _ = run(capsys, *asked, "--batch", "8", "--explain")
    assert code == 0 and "50 samples of 2026-11-30" in out and "(model: " in out
    (tables / "sm_90" / "h200" / "attention_decode.jsonl").unlink()
    code, _, err = run(capsys, *asked, "--batch", "8")
    assert code == 1
    assert "attention_decode" in err and "at decode:8" in err and "sliced" not in err
    assert f"kernelgen tune {MODEL} --target sm_90:h200" in err
    out_folder = tmp_path / "out"
    build = ("build", *asked[1:], "--out", str(out_folder))
    code, _, err = run(capsys, *build)
    assert code == 1 and "decode:1, decode:2" in err and "mixed:8192" in err
    assert not out_folder.exists() or not list(out_folder.iterdir())


def test_what_of_a_table_is_not_used_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = modelled(MODEL, "decode", 8)
    write_tables(tmp_path, (measured(x, plan, H200) for x in plan.launches))
    path = tmp_path / "sm_90" / "h200" / "sliced.jsonl"
    path.write_text(path.read_text() + "half a r")
    asked = ("plan", MODEL, "--target", "sm_90:h200", "--tables", str(tmp_path), "--batch", "8")
    code, out, err = run(capsys, *asked)
    assert code == 0 and "exact" in out
    assert err.count("warning: ") == 1 and "sliced.jsonl: line" in err


def test_coverage_of_a_phase_adds_kernels_and_averages_shares() -> None:
    plans = {
        "decode 1": {"exact": {"kernels": 3, "share": 0.6}, "stale": {"kernels": 1, "share": 0.4}},
        "decode 2": {"exact": {"kernels": 4, "share": 1.0}},
        "mixed 128": {"modelled": {"kernels": 5, "share": 1.0}},
    }
    found = phase_coverage(plans)
    assert found["decode"]["exact"] == {"kernels": 7, "share": 0.8}
    assert found["decode"]["stale"] == {"kernels": 1, "share": 0.2}
    lines = list(coverage_lines(found))
    assert lines[0] == "decode: times by launches (share of time): exact 7 (80%), stale 1 (20%)"
    assert lines[1].startswith("mixed: ") and "modelled 5" in lines[1]


def test_stale_rows_are_a_warning_of_plans_and_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = modelled(MODEL, "decode", 8)
    write_tables(tmp_path, (measured(x, plan, H200, source="1" * 64) for x in plan.launches))
    name = "made up for a test"
    (tmp_path / "PROVENANCE.md").write_text(f"## {name}\n")
    asked = ("plan", MODEL, "--target", "sm_90:h200", "--tables", str(tmp_path), "--batch", "8")
    code, out, err = run(capsys, *asked)
    assert code == 0 and "stale" in out
    assert err.count("warning: ") == 1 and "rows of sm_90:h200 are stale" in err
    code, out, err = run(capsys, "tables", "check", "--tables", str(tmp_path), "--code")
    assert code == 0 and "of them stale" in out
    assert "code has changed since" in err and ".jsonl: line 1: sm_90:h200" in err
    code, out, _ = run(capsys, "tables", "check", "--tables", str(tmp_path), "--code", "--json")
    assert code == 0 and json.loads(out)["stale"] and not json.loads(out)["problems"]


def test_an_illegal_tile_fails_the_check_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = modelled(MODEL, "decode", 8)
    launch = next(x for x in plan.launches if x.kernel.match.family.name == "sliced")
    bad = dict(launch.price.choice) | {"warps": 0}
    write_tables(tmp_path, [measured(launch, plan, H200, choice=bad)])
    (tmp_path / "PROVENANCE.md").write_text("## made up for a test\n")
    where = f"{tmp_path}/sm_90/h200/sliced.jsonl: line 1: "
    code, _, err = run(capsys, "tables", "check", "--tables", str(tmp_path), "--code")
    assert code == 1 and where in err and "warps cannot be 0" in err
    asked = ("plan", MODEL, "--target", "sm_90:h200", "--tables", str(tmp_path), "--batch", "8")
    code, _, err = run(capsys, *asked)
    assert code == 0 and f"warning: {where}" in err


def test_floods_are_ten_lines_and_a_count(
    shipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shipped / "sm_90" / "h200" / "gemv.jsonl"
    path.write_text(path.read_text() + "garbage\n" * 500)
    where = ("--tables", str(shipped))
    for asked in (
        ("tables", "show"),
        ("tables", "diff", str(path), str(path)),
        ("tables", "check"),
    ):
        _, _, err = run(capsys, *asked, *(() if "diff" in asked else where))
        lines = err.splitlines()
        assert 10 <= len(lines) <= 13 and "more" in lines[-1], asked
    _, _, err = run(capsys, "plan", MODEL, "--target", "sm_90:h200", *where)
    assert len(err.splitlines()) == 11 and "more" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("show", "--family", "nosuch"), "no rows of 'nosuch' (allowed: attention_decode"),
        (("show", "--variant", "nosuch"), "no row's variant contains 'nosuch'"),
        (("show", "--fit", "--family", "gemv"), "--family and --variant are for rows"),
    ],
)
def test_an_answer_that_would_be_empty_is_an_error(
    asked: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "tables", *asked)
    assert code == 2 and not out and told in err and err.count("\n") == 1


@pytest.mark.parametrize("asked", [("check",), ("show",), ("show", "--fit"), ("fit",)])
def test_a_folder_without_tables_is_an_error(
    asked: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "tables", *asked, "--tables", str(tmp_path))
    assert code == 2 and not out and str(tmp_path) in err and "<sm>/<device>/" in err


@pytest.mark.parametrize("verb", ["plan", "build"])
def test_rows_cannot_be_required_of_the_cpu(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, verb, MODEL, "--require-tuned")
    assert code == 2 and not out and "--require-tuned: kernels of the CPU have no tiles" in err


def test_show_says_how_far_off_interpolation_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tables", "show", "--fit")
    assert code == 0 and "rows left out and interpolated" in out
    _, out, _ = run(capsys, "tables", "show", "--fit", "--json")
    told = json.loads(out)["left_out"]
    assert told["skinny"]["rows"] >= 10 and told["skinny"]["mean"] <= 0.05
