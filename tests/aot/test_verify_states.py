"""The checks of whole steps on a model with states and latent rows, all kernels interpreted."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
import torch
from fake_cuda import FakeCuda
from gpu_trials import architecture_with
from interpreted import InterpretedLibrary, planned
from reference_library import HostGpu, gpu_build
from test_triton_model import shortened
from verify_build import Small

import kernelgen.archs
from kernelgen.archs.registry import find_architecture
from kernelgen.cli.model import ModelSource
from kernelgen.spec.config import ConfigFile
from kernelgen.verify import launches, step_checks
from kernelgen.verify.built import Built, read_build
from kernelgen.verify.launches import launch_steps
from kernelgen.verify.step_checks import check_steps

DECODE, MIXED = (1,), (4,)
CONTEXT = 1024  # what `gpu_build` plans for


@pytest.fixture
def made(tmp_path: Path) -> tuple[Built, InterpretedLibrary]:
    name = architecture_with("latent_attention")
    tiny = Path(kernelgen.archs.__file__).parent / name / "tiny.json"
    config = ConfigFile("tiny.json", shortened(json.loads(tiny.read_text())))
    architecture = find_architecture(config)
    subject = Small(architecture, architecture.read(config))
    sizes = [*(("decode", n) for n in DECODE), *(("mixed", n) for n in MIXED)]
    with mock.patch("reference_library.SIZES", sizes):
        built = read_build(gpu_build(tmp_path / "b", subject, "float32"), "sm_90")
    source = ModelSource("tiny", "tiny", config)
    model = planned(source, "sm_90:h200", "float32", DECODE, MIXED, CONTEXT)
    return built, InterpretedLibrary(model.program, FakeCuda(eager=True))


def test_steps_pass_and_a_state_of_nobody_is_found(
    made: tuple[Built, InterpretedLibrary], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Poison where nobody has states changes nothing; a step that writes there is told."""
    built, library = made
    for module in (step_checks, launches):
        monkeypatch.setattr(module, "MOST_TOKENS", MIXED[0] - 1)
    assert built.left_out and any(group.per_request for group in built.groups)
    checks = check_steps(built, library, HostGpu(), lambda step: None)  # type: ignore[arg-type]
    assert all(check.passed for check in checks), [c for c in checks if not c.passed]
    assert {check.what for check in checks} == {"finite", "poison", "replay", "unread", "memory"}

    library.before = lambda: torch.Tensor.fill_(library.bound["states"][0], 1)
    found = launch_steps(built, library, HostGpu(), lambda step: None)  # type: ignore[arg-type]
    assert [c.what for c in found if not c.passed] == ["memory"]
    assert "the null page" in next(c.detail for c in found if not c.passed)
