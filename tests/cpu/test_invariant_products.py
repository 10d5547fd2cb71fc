"""A token has the same bits in steps of any size, with matrices in FP8 and in four bits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from kernelgen_runtime import LLM
from kernelgen_runtime.artifact.open import open_artifact
from model_builds import QUICK, compiler, this_isa
from quantised_models import write_model

from kernelgen.archs.registry import builtin_config, builtin_models
from kernelgen.cli.building import build_model
from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import all_plans, lowered
from kernelgen.hw import parse_target

MOST = 256
SMALL = min(builtin_models(), key=lambda n: builtin_config(n).data.get("hidden_size", 1 << 30))
FORMATS = ["fp8_tensor", "fp8_channel", "fp8_block128", "int4_g32"]


def asked(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "online.json"
    path.write_text(json.dumps({"linear": name}))
    return path


@pytest.mark.row("R-010")
@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_steps_of_1_to_256_tokens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of 256 tokens in steps of any number of them, bit for bit."""
    monkeypatch.setenv("CXX", compiler(tmp_path / "g++", QUICK))
    folder = write_model(tmp_path / "model", None, {}, num_hidden_layers=1)
    made = build_model(resolve(str(folder)), ["cpu"], tmp_path / "out", isas=(this_isa(),),
                       online=asked(tmp_path, name), invariant=True)  # fmt: skip
    artifact = open_artifact(Path(made.folder))
    prompt = np.random.default_rng(1).integers(0, 160, MOST).tolist()

    def logits(chunk: int) -> np.ndarray:
        llm = LLM(artifact, folder, max_num_seqs=1, chunk_tokens=chunk, threads=1,
                  logit_rows=MOST, enable_prefix_caching=False)  # fmt: skip
        return np.asarray(llm.logits(prompt)[0])

    whole = logits(MOST).view(np.uint32)
    assert len(np.unique(whole)) > MOST, "rows that say something"
    few = (1, 2, 7, 16, 17, 33, 100, 255)
    sizes = (*range(1, 65), *range(65, MOST, 5)) if name == "fp8_block128" else few
    wrong = [size for size in sizes if not np.array_equal(logits(size).view(np.uint32), whole)]
    assert not wrong


@pytest.mark.row("R-010")
@pytest.mark.parametrize("name", ["fp8_channel", "fp8_block128"])
def test_one_tile_for_every_size_on_a_gpu(name: str, tmp_path: Path) -> None:
    """The order in K follows from N, K and the format alone: no plan has another kernel or tile."""
    model = lowered(resolve(SMALL), "bfloat16", asked(tmp_path, name))
    device = parse_target("sm_90")
    plans = {
        invariant: all_plans(model.graph, device, fusion=True, invariant=invariant)
        for invariant in (True, False)
    }

    def products(invariant: bool) -> set[str]:
        return {
            json.dumps([(launch.kernel.name, launch.kernel.match.family.name,
                         dict(launch.price.choice)) for launch in plan.launches
                        if "packed" in launch.kernel.match.family.name])
            for plan in plans[invariant]
        }  # fmt: skip

    assert len(products(True)) == 1 and '"packed"' in products(True).pop()
    assert len(products(False)) > 1
