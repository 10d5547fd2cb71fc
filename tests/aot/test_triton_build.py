"""One tiny whole model built for the CPU and several SMs at once, where there is no GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.artifact.open import open_artifact
from kernelgen_runtime.device.choose import choose
from kernelgen_runtime.device.found import Found, Gpu
from kernelgen_runtime.errors import UnsupportedGpuError
from model_builds import QUICK, compiler, small_config, this_isa

from kernelgen.cli import building, pipeline
from kernelgen.cli.building import build_model
from kernelgen.cli.model import ModelSource
from kernelgen.core.elf import read_library
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Graph
from kernelgen.planner.plan import Plan
from kernelgen.spec.config import ConfigFile

# One of each kind of tensor cores; 89 and 103 are as 80 and 100 but for their limits, and compile
# in the soak: what chooses among logits takes half a minute an SM.
SMS, OTHERS = (80, 90, 100, 120), (89, 103)
# One row, or as many as tensor cores take at once, by turns: the choice is another for each; and a
# prompt.
DECODE, MIXED = {80: 1, 90: 1, 100: 16, 120: 16, 89: 16, 103: 1}, (128,)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build folder of the CPU and `SMS`."""
    folder = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", compiler(folder / "cxx", QUICK))
        return build(folder / "dist", ("cpu", *(f"sm_{sm}" for sm in SMS)))


def build(out: Path, targets: tuple[str, ...]) -> Path:
    """The tiny model with the plans of `DECODE` and `MIXED`."""
    source = ModelSource("tiny", "tiny", ConfigFile("config.json", small_config()))
    whole = pipeline.all_plans
    with pytest.MonkeyPatch.context() as patch:

        def plans(graph: Graph, device: Device, *others: Any, **more: Any) -> tuple[Plan, ...]:
            patch.setattr(pipeline, "DECODE_SIZES", (DECODE.get(device.sm, 1),))
            return whole(graph, device, *others, **more)

        patch.setattr(building, "all_plans", plans)
        patch.setattr(pipeline, "MIXED_SIZES", MIXED)
        made = build_model(source, targets, out, isas=(this_isa(),))
    assert Path(made.wheel).is_file()
    return Path(made.folder)


def images(built: Path, sm: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((built / f"sm_{sm}" / "report.json").read_text())
    return found


@pytest.mark.parametrize("sm", SMS)
def test_every_kernel_is_legal_and_readable(built: Path, sm: int) -> None:
    check(built, sm)


@pytest.mark.soak
@pytest.mark.parametrize("sm", OTHERS)
def test_every_kernel_is_legal_for_the_others(tmp_path: Path, sm: int) -> None:
    check(build(tmp_path / "dist", (f"sm_{sm}",)), sm)


def check(built: Path, sm: int) -> None:
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


def test_where_no_gpu_fits_the_cpu_runs_it(built: Path) -> None:
    """The same folder: by itself where there is no GPU, by name where there is one."""
    artifact = open_artifact(built)
    assert choose(artifact.manifests, "auto", lambda: Found(())).manifest.sm == 0
    with pytest.raises(UnsupportedGpuError, match="found sm_75"):
        choose(artifact.manifests, "cuda", lambda: Found((Gpu(0, "old", 75),)))
    llm = LLM(artifact, "random:1", device="cpu", max_num_seqs=2, max_model_len=64)
    prompts, params = [[1, 2, 3], [5]], SamplingParams(max_tokens=4, ignore_eos=True)
    assert [len(o.token_ids) for o in llm.generate(prompts, params)] == [4, 4]
