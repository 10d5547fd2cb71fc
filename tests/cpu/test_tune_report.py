"""The report of a sweep, what is shown meanwhile, and the command's own checks."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tune_toys import bundle, group, place, write

from kernelgen.cli.app import main
from kernelgen.cli.tune import Measuring, buckets, measure_bundle
from kernelgen.cli.tune_display import Display, display
from kernelgen.compile.cpp import BuildStep
from kernelgen.core.errors import UsageError
from kernelgen.report.sweep_data import read_sweep
from kernelgen.report.sweep_html import sweep_html
from kernelgen.report.sweep_text import step_rows
from kernelgen.tables import Bucket
from kernelgen.tune.bundle import Pruned
from kernelgen.tune.journal import read_journal
from kernelgen.tune.sweep import Progress

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep with one wrong candidate and one kernel that could not be set up."""
    folder = tmp_path_factory.mktemp("sweep")
    pruned = (Pruned("needs 99 <registers>", 40, "warps 1"), Pruned("too slow", 46, "warps 16"))
    groups = tuple(
        vars(group(i)) | {"pruned": pruned, "kernel": f"kernel_{i} & more"} for i in range(3)
    )
    made = bundle(0, groups=tuple(type(group(0))(**fields) for fields in groups))
    fake = {"wrong": [place(made, 0, 3)], "refuse": [made.groups[2].id]}
    path = folder / "toy.journal.jsonl"
    measure_bundle(write(folder, made), path, Measuring(kind=f"fake:{json.dumps(fake)}"))
    return path


def test_families_tell_before_and_after(journal: Path) -> None:
    view = read_sweep(read_journal(journal)[0])
    assert [k.kernel for k in view.kernels] == [f"kernel_{i} & more" for i in range(3)]
    (family,) = view.families
    shown = [k for k in view.kernels if k.us]
    before, after = sum(k.before_us or 0 for k in shown), sum(k.us or 0 for k in shown)
    ceiling = sum(k.ceiling_us for k in shown)
    assert family.before == pytest.approx(ceiling / before)
    assert family.after == pytest.approx(ceiling / after) and family.after >= family.before
    assert (family.kernels, family.looked_at, family.candidates) == (3, 270, 12)
    assert (family.bad, family.flagged) == (1, 1)
    assert {(p.reason, p.tiles) for p in view.pruned} == {
        ("needs 99 <registers>", 120),
        ("too slow", 138),
    }
    assert len(view.faults) == 1 and "wrong by 12.5 bounds" in view.faults[0].problem


def test_the_page_stands_alone(journal: Path) -> None:
    page = sweep_html(read_sweep(read_journal(journal)[0]))
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)
    assert "needs 99 &lt;registers&gt;" in page and "kernel_0 &amp; more" in page
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 2
    for drawing in drawings:
        ElementTree.fromstring(drawing.replace(" class=diagonal", ' class="diagonal"'))
    assert drawings[1].count("<circle") == 2


def test_a_journal_that_holds_nothing_is_a_page_too() -> None:
    view = read_sweep([{"kind": "begin", "date": "2026-11-30"}])
    assert view.kernels == () and "Nothing was measured" in sweep_html(view)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(str(caught.value.code)), out, err


def test_the_command_reports(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    code, out, err = run(capsys, "tune", "--report", str(journal), "--html", str(page))
    assert code == 0 and page.read_text().startswith("<!doctype html>") and str(page) in err
    assert "ceiling before" in out and "too slow" in out and "not shipped: kernel_2" in out
    code, out, _ = run(capsys, "tune", "--report", str(journal), "--json")
    assert code == 0 and len(json.loads(out)["kernels"]) == 3


def test_the_command_merges(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for expected in ("2 rows added", "0 rows added"):
        code, _, err = run(capsys, "tune", "--merge", str(journal), "--tables", str(tmp_path))
        assert code == 0 and expected in err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ((), 2, "MODEL is missing"),
        (("--measure", "x", "--merge", "y"), 2, "each stands alone"),
        ((MODEL, "--measure", "x"), 2, "MODEL does not go with --measure"),
        (("--measure", "/nowhere/b.zip"), 2, "/nowhere/b.zip"),
        (("--merge", "/nowhere/j"), 2, "/nowhere/j"),
        ((MODEL, "--target", "cpu"), 3, "no tiles"),
        ((MODEL, "--effort", "heroic"), 2, "quick, normal, full"),
        ((MODEL, "--families", "gemv,gem"), 2, "attention_decode"),
        ((MODEL, "--sizes", "decode:0"), 2, "no size that builds have a plan for"),
        ((MODEL, "--sizes", "decode:3"), 2, "decode:1, 2, 4, 8"),
        ((MODEL, "--sizes", ""), 2, "no size that builds"),
        ((MODEL, "--sizes", "decode:8,"), 2, "no size that builds"),
        ((MODEL, "--families", ""), 2, "--families: family ''"),
        ((MODEL, "--emit", "b.zip", "--minutes", "1"), 2, "--minutes does not go with --emit"),
        (("--merge", "x", "--sizes", "decode"), 2, "--sizes does not go with --merge"),
        (("--report", "x", "--tables", "."), 2, "--tables does not go with --report"),
        (("--measure", "x", "--effort", "full"), 2, "--effort does not go with --measure"),
        ((MODEL, "--tables", "/nowhere"), 2, "/nowhere: no such folder"),
        ((MODEL, "--html", "/proc/x/y"), 2, "/proc/x/y"),
        ((MODEL, "--journal", "/proc/x/y"), 2, "/proc/x/y"),
        ((MODEL, "--emit", "/proc/x/y.zip"), 2, "/proc/x/y.zip"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, _, err = run(capsys, "tune", *arguments)
    assert found == code and told in err and "Traceback" not in err


def test_a_bundle_that_is_none_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for data in (b"", b"no zip", b"PK\x03\x04"):
        (tmp_path / "b.zip").write_bytes(data)
        code, _, err = run(capsys, "tune", "--measure", str(tmp_path / "b.zip"))
        assert code == 2 and "is no bundle" in err


def test_code_that_was_altered_is_refused(tmp_path: Path) -> None:
    from kernelgen.tune.bundle_file import BundleFile

    path = write(tmp_path, bundle(1), "folder")
    (code,) = (path / "code").iterdir()
    code.write_bytes(b"other machine code")
    file = BundleFile(path)
    with pytest.raises(UsageError, match="was altered"):
        file.code(code.stem)


def test_sizes_as_people_write_them() -> None:
    assert buckets("decode:4, decode:4,mixed:128") == (Bucket("decode", 4), Bucket("mixed", 128))
    assert set(buckets("decode")) | set(buckets("mixed")) == set(buckets(None))


def _step(**changes: object) -> Progress:
    fields = {
        "done": 1, "total": 4, "kernel": "k", "bucket": "decode:1", "us": 8.0, "before_us": 10.0,
        "note": "", "finished": True, "seconds": 3.0,
    }  # fmt: skip
    return Progress(**{**fields, **changes})  # type: ignore[arg-type]


def test_off_a_terminal_lines_tell_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with display("tuning") as shown:
        for done in range(1, 200):
            shown.compiled(BuildStep(done, 199, f"unit_{done}", False, 0.1))
        shown.measured(_step(us=9.0, finished=False))
        shown.measured(_step())
        shown.measured(_step(us=None, note="disturbed"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("compiled 1/199") and "compiled 199/199 unit_199" in lines
    assert len([line for line in lines if line.startswith("compiled")]) < 10
    assert lines[-2] == "[   3.0 s] 1/4 k decode:1: 8.00 µs (today 10.00)"
    assert lines[-1].endswith("nothing that is right, disturbed")


def test_a_quiet_display_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with display("tuning", quiet=True) as shown:
        shown.compiled(BuildStep(1, 1, "unit", False, 0.1))
        shown.measured(_step())
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_bars_and_the_best_so_far() -> None:
    from rich.console import Console

    shown = Display("tuning toy", quiet=True)
    shown.compiled(BuildStep(3, 9, "unit", False, 0.1))
    shown.measured(_step())
    shown.measured(_step(kernel="on_now", us=7.0, before_us=None, finished=False))
    console = Console(width=100, record=True, force_terminal=False, file=StringIO())
    console.print(shown)
    text = console.export_text()
    for expected in ("tuning toy", "3/9", "1/4", "1.25 × today", "on_now", "7.00 µs"):
        assert expected in text


def test_whole_steps_tell_what_they_decided(journal: Path) -> None:
    """New tiles first, with what the step gained; a decision for a kernel nobody knows is none."""
    lines = read_journal(journal)[0]
    ids = [line["group"] for line in lines if line["kind"] == "group" and line.get("about")]
    decided = [
        {
            "group": ids[0],
            "before": "warps=4",
            "candidate": "warps=4",
            "gains": {"warps=8": [-0.1]},
        },
        {"group": ids[1], "before": "a<b", "candidate": "c", "gains": {"c": [0.02, 0.04], "d": []}},
        {"group": "unknown", "before": "a", "candidate": "b", "gains": {}},
    ]
    told = [{"kind": "decided", "step": "s", "code": "", "flag": "", **one} for one in decided]
    view = read_sweep([*lines, *told])
    assert [(c.kernel, c.tried, c.gain, c.is_new) for c in view.in_steps] == [
        ("kernel_0 & more", 1, 0.0, False),
        ("kernel_1 & more", 2, pytest.approx(0.03), True),
    ]
    first, second = step_rows(view.in_steps)
    assert first[2:] == ("2", "-3.0%", "a<b → c") and second[2:] == ("1", "the same", "warps=4")
    page = sweep_html(view)
    assert "Chosen inside whole steps" in page and "a&lt;b → c" in page and "a<b" not in page
    assert "Chosen inside whole steps" not in sweep_html(read_sweep(lines))
