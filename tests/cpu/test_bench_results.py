"""Figures of a benchmark are never lost, and nothing that was asked for is left out in silence."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_builds import build, small_config, this_isa

from kernelgen.bench import run as module
from kernelgen.cli import main

CASE = ("--prompt", "8", "--tokens", "8", "--rounds", "1", "--threads", "1")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(small_config(), tmp_path_factory.mktemp("bench"), isas=(this_isa(),))


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def places(tmp_path: Path) -> list[Path]:
    """Where no file can be written: a folder, below a file, and where the kernel allows none."""
    (tmp_path / "file").write_text("mine")
    return [tmp_path, tmp_path / "file" / "x.json", Path("/proc/nothing/x.json")]


@pytest.mark.parametrize("option", ["--json", "--markdown"])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(
    small: Path,
    tmp_path: Path,
    option: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "run", lambda *a: pytest.fail("measured for nothing"))
    for place in places(tmp_path):
        code, out, err = bench(capsys, str(small), *CASE, option, str(place))
        assert code == 2 and not out and str(place) in err and len(err.splitlines()) == 1


def test_figures_go_elsewhere_where_their_place_has_gone(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    whole = module._case

    def case(*given: Any) -> Any:
        shutil.rmtree(folder, ignore_errors=True)
        folder.write_text("a file where a folder was")
        return whole(*given)

    monkeypatch.setattr(module, "_case", case)
    code, out, err = bench(capsys, str(small), *CASE, "--json", str(folder / "x.json"))
    assert code == 2 and "Whole decode steps" in out
    spare = next(line for line in err.splitlines() if "the figures are in " in line)
    path = Path(spare.partition("the figures are in ")[2])
    assert json.loads(path.read_text())["schema"] == 1
    shutil.rmtree(path.parent)


def test_a_run_that_ends_early_tells_what_it_has(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = module._case

    def case(llm: Any, opened: Any, options: Any, one: Any, ceiling: Any) -> Any:
        if one.batch == 3:
            raise KeyboardInterrupt
        return whole(llm, opened, options, one, ceiling)

    monkeypatch.setattr(module, "_case", case)
    path = tmp_path / "x.json"
    code, out, err = bench(capsys, str(small), *CASE, "--batch", "2,3", "--json", str(path))
    assert code == 5 and "ended early" in err and "Whole decode steps" in out
    steps = [row for row in json.loads(path.read_text())["rows"] if row["kind"] == "step"]
    assert [row["batch"] for row in steps] == [2]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--baseline", "cublas"], "--baseline: cublas: measured on a GPU only"),
        (["--baseline", "sdpa,cublas"], "allowed: none, transformers"),
        (["--dtype", "bfloat16"], "--dtype: is for models"),
    ],
)
def test_options_without_effect_are_refused(
    small: Path, options: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = bench(capsys, str(small), *CASE, *options)
    assert code == 2 and not out and part in err and len(err.splitlines()) == 1


def test_reports_grow_with_every_part(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelgen.bench.case import Case
    from kernelgen.bench.options import Options

    added = iter("abcd")
    monkeypatch.setattr(
        module, "_with_products", lambda o, p, s, r, x: replace(r, notes=(*r.notes, next(added)))
    )
    cases = (Case(1, 8, 8), Case(2, 8, 8))
    seen: list[Any] = []
    options = Options(small, cases, ("kernelgen", "bench"), rounds=1, threads=1)
    last = module.run(options, lambda text: None, seen.append)
    assert [len(r.cases) for r in seen] == [1, 2, 2, 2] and seen[-1].cases == last.cases
    assert [[c.notes for c in r.cases] for r in seen[2:]] == [[("a",), ()], [("a",), ("b",)]]
