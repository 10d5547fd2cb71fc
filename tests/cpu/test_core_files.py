"""Errors, atomic writing, locks, dtypes and resources."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelgen.core import errors, resources
from kernelgen.core.dtypes import DTYPES, dtype, dtype_of_safetensors
from kernelgen.core.files import file_lock, read_bounded, staged_folder, try_file_lock, write_atomic


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        (errors.CheckFailed, 1),
        (errors.UsageError, 2),
        (errors.UnsupportedError, 3),
        (errors.NoDeviceError, 4),
        (errors.Interrupted, 5),
        (errors.DiskFull, 5),
    ],
)
def test_exit_codes(cls: type[errors.KernelgenError], code: int) -> None:
    assert cls("x").exit_code == code


def test_an_error_is_one_line_that_survives_a_process() -> None:
    error = errors.DiskFull.of(path="/a", where="here", allowed="more", hint="try again")
    text = "here: no space left on device while writing /a (allowed: more); try again"
    assert str(error) == text
    assert str(pickle.loads(pickle.dumps(error))) == text


def test_hostile_text_is_quoted_and_cut() -> None:
    assert errors.quote("a\nb\x1b[31m") == r"'a\nb\x1b[31m'"
    assert len(errors.quote("x" * 10_000)) == 80


def test_problem_list_is_bounded() -> None:
    problems = errors.ProblemList("f.json", errors.UnsupportedError, limit=2)
    problems.raise_if_any()
    problems.add("first", where="a.b", allowed="c")
    problems.add("first", where="a.b", allowed="c")
    with pytest.raises(errors.UnsupportedError, match=r"^f\.json: a\.b: first \(allowed: c\)$"):
        problems.raise_if_any()
    problems.add("second")
    problems.add("third")
    with pytest.raises(errors.UnsupportedError) as caught:
        problems.raise_if_any(hint="go on")
    assert str(caught.value).splitlines() == [
        "f.json: 3 problems",
        "  - a.b: first (allowed: c)",
        "  - second",
        "  … and 1 more; go on",
    ]


def test_write_is_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, "old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.DiskFull, match=f"no space left on device while writing {path}"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device(tmp_path) -> None:
    path = tmp_path / "new" / "link"
    with pytest.raises(errors.DiskFull), staged_folder(path.parent) as folder:
        (folder / "link").symlink_to("/dev/full")
        (folder / "link").write_text("x")
    assert not path.parent.exists() and not list(tmp_path.iterdir())


def test_refused_place_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.UsageError, match=r"x: cannot be used: File exists \(.*/file\)"):
        write_atomic(tmp_path / "file" / "x", "")
    with pytest.raises(errors.UsageError, match="No such file"):
        read_bounded(tmp_path / "absent", 10)


def test_staged_folder_replaces_or_leaves(tmp_path) -> None:
    path = tmp_path / "build"
    with staged_folder(path) as folder:
        (folder / "a").write_text("1")
    with pytest.raises(ZeroDivisionError), staged_folder(path) as folder:
        (folder / "b").write_text("2")
        raise ZeroDivisionError
    assert os.listdir(path) == ["a"]
    with staged_folder(path) as folder:
        (folder / "c").write_text("3")
    assert os.listdir(path) == ["c"] and os.listdir(tmp_path) == ["build"]


def test_lock_keeps_processes_apart(tmp_path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys,time; from pathlib import Path; from kernelgen.core.files import file_lock\n"
        "with file_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(0.5)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    start = time.monotonic()
    with try_file_lock(path) as held:
        assert not held
    with file_lock(path):
        assert time.monotonic() - start > 0.2
    assert child.wait() == 0
    with file_lock(path, shared=True), file_lock(path, shared=True):
        pass
    with try_file_lock(path) as held:
        assert held


def test_dtypes_agree_with_torch_and_numpy() -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    for entry in DTYPES.values():
        assert getattr(torch, entry.torch).itemsize == entry.bytes == np.dtype(entry.numpy).itemsize
        assert getattr(torch, entry.torch).is_floating_point == entry.is_float
        assert dtype(entry.name) is dtype_of_safetensors(entry.safetensors) is entry
    with pytest.raises(errors.UnsupportedError, match=r"'float8' is not known.*float32"):
        dtype("float8")


def test_resources_of_a_checkout(repo: Path) -> None:
    assert resources.templates_dir() == repo / "templates"
    assert resources.tables_dir() == repo / "autotune_configs"
    assert resources.runtime_dir() == repo / "runtime/kernelgen_runtime"
    assert "Apache License" in resources.license_file().read_text()
