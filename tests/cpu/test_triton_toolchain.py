"""Finding Triton without importing it, and the verdicts over what it compiles."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import gpu_toy
import gpu_toy_kernels as toy
import pytest

from kernelgen.compile import triton_toolchain
from kernelgen.compile.store import Store
from kernelgen.compile.triton import compile_triton
from kernelgen.compile.triton_limits import IllegalKernel, KernelFault, problems
from kernelgen.compile.triton_toolchain import find_triton, worker_environment
from kernelgen.core.errors import UnsupportedError


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    triton_toolchain._probe.cache_clear()
    yield
    triton_toolchain._probe.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, version: str | None, record: str = "a") -> None:
    """A Triton of this version is installed, or none."""
    found = SimpleNamespace(version=version, read_text=lambda name: record)
    spec = None if version is None else object()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(metadata, "distribution", lambda name: found)


def test_missing_triton_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, None)
    store = Store(tmp_path)
    with pytest.raises(UnsupportedError, match=r"triton is not installed.*kernelgen\[gpu\]"):
        compile_triton([toy.add()], sms=[90], store=store)


def test_old_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "3.5.1")
    with pytest.raises(UnsupportedError, match=r"version '3\.5\.1' \(allowed: 3\.6 or newer\)"):
        find_triton()


def test_identity_follows_the_installed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for version, record in (("3.6.0", "a"), ("3.6.0", "b"), ("3.9.0", "a")):
        pretend(monkeypatch, version, record)
        triton_toolchain._probe.cache_clear()
        seen.add(find_triton().identity)
    monkeypatch.setenv("TRITON_PTXAS_PATH", sys.executable)
    seen.add(find_triton().identity)
    assert len(seen) == 4
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/nonexistent/ptxas")
    with pytest.raises(UnsupportedError, match="TRITON_PTXAS_PATH: '/nonexistent/ptxas' cannot"):
        find_triton()


def test_workers_see_no_other_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/some/ptxas")
    found = worker_environment(tmp_path)
    mine = {name for name in found if name.startswith("TRITON_")}
    assert "TRITON_INTERPRET" not in found and found["TRITON_PTXAS_PATH"] == "/some/ptxas"
    ours = {"TRITON_CACHE_DIR", "TRITON_DISABLE_LINE_INFO", "TRITON_DUMP_PTXAS_LOG"}
    assert mine == {*ours, "TRITON_PTXAS_PATH"}


LEGAL = gpu_toy.made_up_image(toy.gemv(), 90)
LIMITS = {
    "spills registers: 12": replace(LEGAL, spill_bytes=12),
    "takes 65664 registers, 216 × 304 threads (limit: 65536)": replace(
        LEGAL, registers=211, threads=304
    ),
    "takes 232449 bytes of shared memory (limit: 232448)": replace(LEGAL, shared_bytes=232449),
    "takes 2048 threads a block (limit: 1024)": replace(LEGAL, registers=16, threads=2048),
    "takes 520 columns of tensor memory (limit: 512)": replace(LEGAL, tensor_columns=520),
    "asks for 384 bytes of global scratch": replace(LEGAL, scratch_bytes=384),
    "runs in clusters of 9": replace(LEGAL, cluster=9),
}


@pytest.mark.parametrize("text", LIMITS)
def test_limits(text: str) -> None:
    (problem,) = problems(LIMITS[text])
    assert problem.startswith(text)


def test_spills_are_legal_only_where_they_were_measured() -> None:
    spilled = replace(LEGAL, spill_bytes=12)
    assert problems(spilled, spills=True) == []
    assert len(problems(replace(spilled, cluster=9), spills=True)) == 1
    unit = replace(toy.gemv(), spills_on=(90,))
    assert 90 in unit.spills_on and 100 not in unit.spills_on


def test_a_kernel_at_its_limits_is_legal() -> None:
    most = replace(LEGAL, registers=128, threads=512, shared_bytes=232448, stack_bytes=32)
    assert problems(most) == []
    assert problems(replace(most, sm=120)) == [
        "takes 232448 bytes of shared memory (limit: 101376)"
    ]


def test_many_faults_are_bounded() -> None:
    faults = tuple(KernelFault(f"k{i}", 90, "", "spills") for i in range(9))
    error = IllegalKernel.found(faults)
    assert error.faults == faults
    assert "k4 on sm_90 spills; and 4 more" in str(error) and "k5" not in str(error)
