"""Reading a build folder back: kernels with their blocks, layers and groups; what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from verify_build import ISA, SIZES, build, small

from kernelgen.core.errors import UsageError
from kernelgen.verify.built import read_build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("built"), small(), "bfloat16")


def test_a_build_is_read_back(folder: Path) -> None:
    built, spec = read_build(folder), small().spec
    assert {g.window for g in built.groups} == {layer.attention.window for layer in spec.layers}
    assert built.layers == (0, 1)
    assert built.libraries() == {ISA: folder / f"lib/cpu_{ISA}.so"}
    assert {p.phase: p.size for p in built.plans} == SIZES
    for use in (use for kernel in built.kernels for use in kernel.uses):
        assert (use.number, use.size) == (int(use.phase == "decode"), SIZES[use.phase])
    for kernel in built.kernels:
        outside = {v.name for v in kernel.block.values if v.name not in kernel.block.producer}
        named = {o.name for o in kernel.operands if o.role not in ("output", "scratch")}
        assert outside == named, kernel.name
        assert kernel.has_cache == bool(kernel.layers and kernel.has_cache)
    attending = [k for k in built.kernels if k.has_cache and k.outputs]
    assert sorted({layer for k in attending for layer in k.layers}) == [0, 1]


def test_scratch_has_room_for_the_step(folder: Path) -> None:
    built = read_build(folder)
    plans = {p["phase"]: p["workspace_bytes"] for p in built.manifest["plans"]}
    assert built.plan("decode", 3).workspace_bytes == plans["decode"]
    assert built.plan("mixed", 128).workspace_bytes == plans["mixed"]


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / name
        data = json.loads(path.read_text())
        path.write_text(json.dumps(change(data)))

    return apply


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


FAULTS: dict[str, Callable[[Path], None]] = {
    "manifest.json": gone("manifest.json"),
    "kernels.json": gone("kernels.json"),
    "not a build": changed("kernels.json", lambda data: {"kernels": data}),
    "was not built for the CPU": changed("manifest.json", lambda data: {**data, "targets": []}),
    "lacks 'signature'": changed(
        "kernels.json", lambda data: [{k: v for k, v in data[0].items() if k != "signature"}]
    ),
}


@pytest.mark.parametrize("text", FAULTS)
def test_what_is_no_build_is_refused(folder: Path, tmp_path: Path, text: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    FAULTS[text](copy)
    with pytest.raises(UsageError, match=text):
        read_build(copy)
