"""One tiny whole model built for every SM at once: the wheel that a machine without a GPU makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernelgen_runtime.artifact.open import open_artifact
from kernelgen_runtime.device.choose import choose
from kernelgen_runtime.device.found import Found, Gpu
from model_builds import small_config

from kernelgen.cli import building, pipeline
from kernelgen.cli.building import build_model
from kernelgen.cli.model import ModelSource
from kernelgen.core.elf import read_library
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Graph
from kernelgen.planner.plan import Plan
from kernelgen.spec.config import ConfigFile

SMS = (80, 89, 90, 100, 103, 120)
# One row, or as many as tensor cores take at once, by turns: what is compiled for the choice among
# logits takes longest and is another for each; and a prompt.
DECODE, MIXED = {80: 1, 89: 16, 90: 1, 100: 16, 103: 1, 120: 16}, (128,)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build folder."""
    source = ModelSource("tiny", "tiny", ConfigFile("config.json", small_config()))
    whole = pipeline.all_plans
    with pytest.MonkeyPatch.context() as patch:

        def plans(graph: Graph, device: Device, *others: Any) -> tuple[Plan, ...]:
            patch.setattr(pipeline, "DECODE_SIZES", (DECODE[device.sm],))
            return whole(graph, device, *others)

        patch.setattr(building, "all_plans", plans)
        patch.setattr(pipeline, "MIXED_SIZES", MIXED)
        made = build_model(source, [f"sm_{sm}" for sm in SMS], tmp_path_factory.mktemp("out"))
    assert Path(made.wheel).is_file()
    return Path(made.folder)


def images(built: Path, sm: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((built / f"sm_{sm}" / "report.json").read_text())
    return found


@pytest.mark.parametrize("sm", SMS)
def test_every_kernel_is_legal_and_readable(built: Path, sm: int) -> None:
    found = images(built, sm)
    assert len(found) > 12
    for name, image in found.items():
        assert image["sm"] == sm and image["spill_bytes"] == 0, name
        assert image["pdl"] is (sm >= 90), name
        assert (built / f"sm_{sm}" / f"{name}.py").is_file()
    facts = read_library(built / "lib" / f"cuda_sm_{sm}.so")
    assert all(symbol.startswith("TVMFFI") for symbol in facts.undefined)


def test_each_gpu_finds_its_own(built: Path) -> None:
    artifact = open_artifact(built)
    for sm in SMS:
        choice = choose(artifact.manifests, "auto", lambda sm=sm: Found((Gpu(0, "any", sm),)))
        assert choice.manifest.sm == sm
        assert artifact.library_path(choice.manifest.libraries[0]).is_file()
