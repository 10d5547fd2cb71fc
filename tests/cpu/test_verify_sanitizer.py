"""`verify --sanitizer`: every kernel is launched, findings are told, hangs leave nobody."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from model_builds import compiler
from reference_library import HostGpu, ReferenceLibrary, gpu_build
from verify_build import build, small

from kernelgen.cli import main
from kernelgen.core.errors import UnsupportedError
from kernelgen.verify import sanitizer
from kernelgen.verify.built import Built, read_build
from kernelgen.verify.child import Child, Under
from kernelgen.verify.launches import launch_kernel, launch_steps
from kernelgen.verify.library import KernelLibrary
from kernelgen.verify.place import Host
from kernelgen.verify.sanitizer import check_watched, find_sanitizer, told
from kernelgen.verify.supervisor import kernel_names

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at mlp_down_residual+0x1f0
=========     by thread (3,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: {count} error{s}
"""
RACECHECK = "========= RACECHECK SUMMARY: {} hazards displayed ({} errors, 0 warnings)\n"
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = gpu_build(tmp_path_factory.mktemp("gpu") / "b", small(), "bfloat16")
    return read_build(folder, "sm_90")


def test_every_tile_of_every_kernel_is_launched(built: Built) -> None:
    for kernel in built.kernels:
        library: Any = ReferenceLibrary(built)
        checks = launch_kernel(built, kernel, library, HostGpu(), lambda step: None)
        assert [(c.subject, c.what, c.passed) for c in checks] == [(kernel.name, "memory", True)]
        assert {use.number for use in kernel.uses} == set(library.plans)


def test_a_step_of_every_plan_is_launched(tmp_path: Path) -> None:
    made, seen = read_build(build(tmp_path / "b", small(), "float32")), []
    ((isa, path),) = made.libraries().items()
    checks = launch_steps(made, KernelLibrary(path, isa), Host(), seen.append)
    assert [c.what for c in checks] == ["finite", "memory"] and all(c.passed for c in checks)
    assert len(seen) == len(made.plans)


@pytest.mark.parametrize(
    "logs, count, words",
    [
        ([CLEAN, CLEAN], 0, ""),
        ([RACECHECK.format(0, 0)], 0, ""),
        (
            [CLEAN, MEMCHECK.format(count=1, s="")],
            1,
            "Invalid __global__ write of size 4 bytes;",
        ),
        ([MEMCHECK.format(count=3, s="s"), CLEAN], 3, "mlp_down_residual"),
        ([RACECHECK.format(2, 2)], 2, "RACECHECK SUMMARY: 2 hazards"),
        (["========= Error: no device\n"], 1, "Error: no device"),
        ([""], 1, "the tool said nothing"),
    ],
)
def test_what_logs_say(logs: list[str], count: int, words: str) -> None:
    check = told("memcheck", logs, 7)
    assert (check.error, check.cases, check.passed) == (count, 7, not count)
    assert words in check.detail


def test_a_tool_around_the_worker(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in that logs, and answers for the worker: what it was told, with which variables."""
    names = kernel_names(built)
    lines = [{}, *({"kernel": n, "checks": []} for n in names)]
    (tmp_path / "lines").write_text("".join(json.dumps(line) + "\n" for line in lines))
    law = {"what": "refine", "cases": 3, "wrong": 0, "error": 0.0, "first": ""}
    (tmp_path / "laws").write_text(json.dumps(law) + "\n")
    script = (
        f'echo "$PYTORCH_NO_CUDA_MEMORY_CACHING $*" >> {tmp_path}/called\n'
        'for a; do [ "$b" = --log-file ] && log="$a"; b="$a"; done\n'
        f'echo "========= ERROR SUMMARY: 2 errors" > "$log"\n'
        f'case "$*" in *--watched*) cat {tmp_path}/lines;; *--eager) cat {tmp_path}/laws;; esac'
    )
    compiler(tmp_path / sanitizer.PROGRAM, script)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    followed, check = check_watched(built, "sm_90", "memcheck")
    assert (followed.what, followed.cases, followed.passed) == ("refine", 3, True)
    assert (check.error, check.cases, check.what) == (4, len(names), "memcheck")  # of two children
    called = (tmp_path / "called").read_text()
    assert called.startswith("1 --tool memcheck --kernel-regex-exclude kns=native")
    assert f"--watched {built.folder} sm_90 {names[0]}" in called
    check_watched(built, "sm_90", "racecheck")
    assert (tmp_path / "called").read_text().splitlines()[2].startswith(" --tool racecheck")


def test_a_hang_under_a_tool_ends_both(tmp_path: Path) -> None:
    """The tool is another process than the child that hangs: neither is left behind."""
    around = compiler(tmp_path / "around", f'"$@" & echo $! > {tmp_path}/pid; wait')

    class Around(Under):
        def command(self) -> list[str]:
            return [around]

    with Child(["-c", "import time; time.sleep(600)"], under=Around()) as child:
        assert list(child.lines(1.0)) == []
        assert child.end().startswith("hung")
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text():
            return
        time.sleep(0.05)
    raise AssertionError("the child of the tool is still there")


def test_without_the_program_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sanitizer, "_FOLDERS", ())
    with pytest.raises(UnsupportedError, match="compute-sanitizer is not installed"):
        find_sanitizer()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--target", "cpu"], "--sanitizer: watches kernels of GPUs"),
        (["--target", "sm_90", "--weights", "w"], "takes neither --weights nor --reference"),
    ],
)
def test_where_it_makes_no_sense(
    built: Built, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(built.folder), "--sanitizer", "memcheck", *arguments])
    assert ended.value.code and words in capsys.readouterr().err
