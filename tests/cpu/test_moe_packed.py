"""Quantised experts on the CPU against dequantise-then-float64, pair by pair and sorted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kernelgen_runtime.artifact.read import read_manifests
from kernelgen_runtime.errors import WeightsError
from kernelgen_runtime.weights.load import load_weights
from model_builds import this_isa
from moe_blocks import Shape, built, operands, wrong
from safetensors.torch import load_file, save_file

from kernelgen.archs.registry import architectures
from kernelgen.cli.building import build_model
from kernelgen.cli.model import resolve
from kernelgen.cli.verification import completed_cases
from kernelgen.core.dtypes import BFLOAT16, FLOAT32, DType
from kernelgen.spec.config import read_config
from kernelgen.verify.built import read_build
from kernelgen.verify.compare import different
from kernelgen.verify.model_checks import ModelUnderTest, check_model

FORMATS = ("nvfp4", "fp8_channel", "mxfp4", "int4_g32", "fp8_block128")
KINDS: tuple[DType, ...] = (FLOAT32, BFLOAT16)
CASES = [(name, KINDS[i % 2]) for i, name in enumerate(FORMATS)]


def shape_of(kind: str) -> Shape:
    """Columns fill no panel; K fills groups, and where a format lets it, no block of them."""
    if kind.startswith("fp8"):
        return Shape(hidden=150, inner=45, shared=0, format=kind)
    return Shape(hidden=192, inner=64, shared=33, format=kind)


@pytest.mark.row("R-068")
@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_kernels_are_right(kind: str, dtype: DType) -> None:
    shape = shape_of(kind)
    made = built(shape, dtype)
    for tokens in (1, 3, 130):
        given = operands(made, shape, tokens, seed=tokens)
        first = made.run(made.plans[0], given)
        assert wrong(made, given, first, shape) == 0
        assert different(first, made.run(made.plans[1], given)) == 0


def checkpoint(folder: Path) -> Path:
    """A tiny model with routed experts: its config and random weights."""
    tiny = next(
        a
        for a in architectures().values()
        if "num_local_experts" in (a.folder / "tiny.json").read_text()
    )
    data = json.loads((tiny.folder / "tiny.json").read_text())
    layers = data["num_hidden_layers"]
    one = {k: v[:1] for k, v in data.items() if isinstance(v, list) and len(v) == layers}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(data | one | {"num_hidden_layers": 1}))
    config = read_config(folder / "config.json")
    spec = tiny.read(config)
    made, tensors = torch.Generator().manual_seed(5), {}
    for rule in tiny.checkpoint(spec, tiny.lower(spec, FLOAT32)):
        if rule.name not in tensors:
            random = torch.randn(rule.shape, generator=made)
            vector = len(rule.shape) == 1
            tensors[rule.name] = random * 0.3 + 1 if vector else random * rule.shape[-1] ** -0.5
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.row("R-063")
@pytest.mark.row("R-068")
def test_a_model_whose_experts_are_quantised_at_load(tmp_path: Path) -> None:
    """From config to logits: kernels and loader against the dequantised model."""
    folder, online = checkpoint(tmp_path / "model"), tmp_path / "online.json"
    online.write_text(json.dumps({"moe": "fp8_per_channel", "linear": "fp8_per_tensor"}))
    source, sets = resolve(str(folder)), (this_isa(),)
    made = build_model(source, ["cpu"], tmp_path / "out", isas=sets, dtype="float32", online=online)
    subject = read_build(Path(made.folder))
    checks = check_model(ModelUnderTest(subject, folder), completed_cases(source, subject, None))
    missed = [f"{c.subject} {c.what}: {c.error} {c.detail}" for c in checks if not c.passed]
    assert not missed, "\n".join(missed)
    with pytest.raises(WeightsError) as told:
        load_weights(
            read_manifests(Path(made.folder) / "manifest.json")[0],
            with_an_expert_less(folder, tmp_path),
        )
    assert "experts.gate_up_proj" in str(told.value) and "shape [" in str(told.value)


def with_an_expert_less(folder: Path, tmp_path: Path) -> Path:
    """A checkpoint whose stacks hold another number of experts than the config says."""
    other = tmp_path / "other"
    other.mkdir()
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {n: t[:-1].contiguous() if t.ndim == 3 else t for n, t in tensors.items()},
        other / "model.safetensors",
    )
    return other
