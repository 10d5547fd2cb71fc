"""`tune` says what it did and what it could not do: never in silence, and early where it can."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from table_rows import row, row_of, write
from tune_toys import bundle
from tune_toys import write as write_toys

from kernelgen.cli.app import main
from kernelgen.cli.tune import Measuring, measure_bundle, merge_journals
from kernelgen.core.errors import UsageError
from kernelgen.report.sweep_data import read_sweep
from kernelgen.tune.journal import open_journal, read_journal
from kernelgen.tune.rows import bring

MODEL = "smollm2-135m-instruct"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(str(caught.value.code)), out, err


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A finished sweep of three kernels."""
    path = tmp_path / "toy.journal.jsonl"
    measure_bundle(write_toys(tmp_path, bundle(3)), path, Measuring(kind="fake:{}"))
    return path


def changed(journal: Path, **fields: object) -> Path:
    """The journal with other fields in its first line."""
    first, *rest = journal.read_text().splitlines(keepends=True)
    begin = json.dumps(json.loads(first) | fields, sort_keys=True) + "\n"
    journal.write_text("".join([begin, *rest]))
    return journal


@pytest.mark.parametrize("schema", [2, "1", None])
def test_a_journal_of_another_schema_is_neither_merged_nor_told_nor_gone_on_with(
    journal: Path, schema: object, tmp_path: Path
) -> None:
    changed(journal, schema=schema)
    told = "newer than this kernelgen" if schema == 2 else "schema"
    with pytest.raises(UsageError, match=told):
        read_journal(journal)
    with pytest.raises(UsageError, match=told):
        merge_journals([journal], tmp_path)
    before = journal.read_bytes()
    with pytest.raises(UsageError, match=told), open_journal(journal, "w" * 64):
        pass
    assert journal.read_bytes() == before and not list(tmp_path.glob("sm_90"))


@pytest.mark.parametrize("content", ["", "garbage\n", '{"kind": "group"}\n', "[1]\n" * 50])
def test_a_report_of_what_is_no_journal_is_an_error(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_text(content)
    code, out, err = run(capsys, "tune", "--report", str(tmp_path / "x"))
    assert code == 2 and not out and err.count("\n") == 1 and "no journal of a sweep" in err


def test_lines_that_are_none_are_counted_and_the_rest_is_told(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.write_text(journal.read_text() + "garbage\n" * 500 + '{"kind": "coarse"}\n')
    code, out, err = run(capsys, "tune", "--report", str(journal))
    assert code == 0 and "gemv" in out
    assert err.count("\n") == 11 and "… and 491 more" in err


def test_a_group_of_other_fields_is_one_line(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.write_text(journal.read_text() + '{"kind":"group","group":"x","about":{"model":1}}\n')
    code, _, err = run(capsys, "tune", "--report", str(journal))
    assert code == 2 and err.count("\n") == 1 and str(journal) in err


def test_a_row_that_is_none_costs_the_merge_no_other(journal: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    groups = [line for line in lines if line["kind"] == "group"]
    groups[0]["row"]["backend"] = "magic"
    groups[1]["row"]["schema"] = 3
    journal.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    tables = tmp_path / "tables"
    tables.mkdir()
    done = merge_journals([journal], tables)
    assert done.added == 1 and len(done.problems) == 2
    assert "backend 'magic'" in done.problems[0] and "schema" in done.problems[1]


def test_a_merge_tells_what_is_left_to_do_and_what_has_changed(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = tmp_path / "tables"
    asked = ("tune", "--merge", str(journal), "--tables", str(tables))
    code, _, err = run(capsys, *asked)
    assert code == 2 and "no such folder" in err and not tables.exists()
    tables.mkdir()
    code, _, err = run(capsys, *asked)
    assert code == 0 and "3 rows added" in err and "wrote " in err
    assert "PROVENANCE.md has no section ## h200-" in err
    assert f"kernelgen tables fit --target sm_90:h200 --tables {tables}" in err
    code, _, err = run(capsys, *asked)
    assert code == 0 and "0 rows added, 0 replaced, 0 kept" in err and len(err.splitlines()) == 1


def test_an_older_row_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, row(date="2026-12-01"))
    before = path.read_bytes()
    done = bring([row_of(date="2026-11-01", us=9.0)], tmp_path)
    assert (done.kept, done.files) == (1, ()) and path.read_bytes() == before


@pytest.mark.parametrize("arguments", [(MODEL,), ("--measure",)])
def test_without_a_gpu_nothing_is_compiled_or_begun(
    arguments: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kernelgen_runtime.device import found as module

    from kernelgen.cli import tune as tuning

    monkeypatch.setattr(module, "find_gpus", lambda: module.Found((), "no driver"))
    monkeypatch.setattr(tuning, "planned", lambda wish: pytest.fail("planned for nothing"))
    made = write_toys(tmp_path, bundle(2))
    asked = arguments if arguments == (MODEL,) else (*arguments, str(made))
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "tune", *asked)
    assert code == 4 and not out and err.count("\n") <= 2 and "found no NVIDIA GPU" in err
    assert "--emit BUNDLE" in err and sorted(tmp_path.iterdir()) == before


def test_a_wish_without_kernels_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelgen.cli import tune as tuning

    nothing = SimpleNamespace(planned=())
    monkeypatch.setattr(tuning, "Emitter", SimpleNamespace(of=lambda wish: nothing))
    wish = ("--families", "attention_prefill", "--sizes", "decode:1")
    code, _, err = run(capsys, "tune", MODEL, *wish, "--emit", str(tmp_path / "b.zip"))
    assert code == 2 and "has no kernel of attention_prefill at decode:1" in err
    assert not (tmp_path / "b.zip").exists()


def test_an_empty_bundle_is_refused(tmp_path: Path) -> None:
    path = write_toys(tmp_path, bundle(0))
    with pytest.raises(UsageError, match="holds no kernel to measure"):
        measure_bundle(path, tmp_path / "journal", Measuring(kind="fake:{}"))
    assert not (tmp_path / "journal").exists()


def test_the_report_says_what_the_cost_models_own_choices_cost(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = read_journal(journal)[0]
    groups = [line for line in lines if line["kind"] == "group"]
    shares = [g["modelled_us"] / g["row"]["us"] for g in groups]
    view = read_sweep(lines)
    assert view.modelled == pytest.approx(sum(shares) / 3)
    assert view.families[0].modelled == view.modelled
    code, out, _ = run(capsys, "tune", "--report", str(journal), "--report", str(journal))
    assert code == 0 and f"take {view.modelled - 1:.1%} longer than the fastest" in out
