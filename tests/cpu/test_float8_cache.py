"""An 8-bit cache: numbers, kernels and models on the CPU, scales of every producer, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from kernelgen_runtime.artifact.read import read_manifests
from kernelgen_runtime.errors import WeightsError
from kernelgen_runtime.weights.load import load_weights
from model_builds import this_isa
from quantised_models import write_model
from safetensors.torch import load_file, save_file

from kernelgen.archs.weight_rules import TensorRule
from kernelgen.cli.building import build_model
from kernelgen.cli.cache_type import narrow_cache, scale_names
from kernelgen.cli.model import resolve
from kernelgen.cli.verification import completed_cases
from kernelgen.core.errors import UnsupportedError
from kernelgen.ops.cache_write import narrow
from kernelgen.verify.built import read_build
from kernelgen.verify.model_checks import ModelUnderTest, check_model
from kernelgen.verify.supervisor import check_kernels

NAMES = (
    "model.layers.{}.self_attn.{}_scale",
    "model.layers.{}.self_attn.{}_proj.{}_scale",
)
LAYERS = 2


def model(folder: Path, *, scales: str = "", value: float = 0.5, **more: Any) -> Path:
    """A tiny checkpoint; `scales` is the form of their names, keys get `value`, values twice it."""
    write_model(folder, None, {}, num_hidden_layers=LAYERS, **more)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for layer in range(LAYERS) if scales else ():
        for side, times in (("k", 1), ("v", 2)):
            name = scales.format(layer, side, side)
            tensors[name] = torch.tensor(value * times)
    save_file(tensors, path)
    return folder


def built(folder: Path, out: Path, dtype: str = "bfloat16", cache: str = "fp8") -> Path:
    made = build_model(
        resolve(str(folder)), ["cpu"], out, isas=(this_isa(),), dtype=dtype, cache=cache
    )
    return Path(made.folder)


def missed(checks: Any) -> str:
    return "\n".join(f"{c.subject} {c.what}: {c.error} {c.detail}" for c in checks if not c.passed)


def test_every_code_is_its_own_rounding() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    finite = codes[~codes.isnan()]
    assert torch.equal(narrow(finite), finite)
    assert narrow(torch.tensor([449.0, -1e9, 464.0])).tolist() == [448.0, -448.0, 448.0]
    assert narrow(torch.tensor([float("nan")])).isnan().all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels(dtype: str, tmp_path: Path) -> None:
    """Every kernel alone, poisoned and guarded, with scales that are not 1."""
    build = read_build(built(model(tmp_path / "model"), tmp_path / "out", dtype))
    assert any(w["name"].endswith("kv_scales") for w in build.manifest["weights"])
    storing = [k.name for k in build.kernels if any(o.role == "cache" for o in k.operands)]
    assert storing and not missed(check_kernels(build, kernels=storing))


@pytest.mark.parametrize("scales", NAMES)
def test_model_with_scales(scales: str, tmp_path: Path) -> None:
    folder = model(tmp_path / "model", scales=scales)
    build = read_build(built(folder, tmp_path / "out", "float32"))
    cases = completed_cases(resolve(str(folder)), build, None)
    assert not missed(check_model(ModelUnderTest(build, folder), cases))
    bound = load_weights(read_manifests(build.folder / "manifest.json")[0], folder).tensors
    assert bound["layers.1.attn.kv_scales"].tolist() == [0.5, 1.0]


def test_half_the_bytes(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    pages = [
        json.loads((built(folder, tmp_path / c, cache=c) / "manifest.json").read_text())
        for c in ("bfloat16", "fp8")
    ]
    wide, half = (p["targets"][0]["cache"]["page_bytes"] for p in pages)
    assert wide == 2 * half


def test_scales_are_one_where_there_are_none(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    build = built(folder, tmp_path / "out")
    bound = load_weights(read_manifests(build / "manifest.json")[0], folder).tensors
    assert bound["layers.0.attn.kv_scales"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none(value: float, tmp_path: Path) -> None:
    folder = model(tmp_path / "model", scales=NAMES[0], value=value)
    build = built(folder, tmp_path / "out")
    with pytest.raises(WeightsError, match=r"self_attn\.k_scale.*finite and above zero"):
        load_weights(read_manifests(build / "manifest.json")[0], folder)


def test_a_scale_of_several_numbers(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"model.layers.1.self_attn.v_scale": torch.ones(2)}, path)
    build = built(folder, tmp_path / "out")
    with pytest.raises(WeightsError, match=r"shape \[2\], must be one number"):
        load_weights(read_manifests(build / "manifest.json")[0], folder)


def test_asked_and_announced() -> None:
    assert narrow_cache("auto", "bfloat16", "fp8") and not narrow_cache("auto", "bfloat16", "")
    assert not narrow_cache("bfloat16", "bfloat16", "fp8")  # the user has the last word
    assert narrow_cache("fp8", "float32", "")
    with pytest.raises(UnsupportedError, match="nvfp4"):
        narrow_cache("auto", "bfloat16", "nvfp4")
    with pytest.raises(UnsupportedError, match="float32 beside"):
        narrow_cache("float32", "bfloat16", "")


def test_names_of_scales() -> None:
    rule = TensorRule("model.layers.7.self_attn.k_proj.weight", (8, 8), "layers.7.attn.k.weight")
    ((name, (keys, values)),) = scale_names([rule]).items()
    assert name == "layers.7.attn.kv_scales"
    assert keys[0] == "model.layers.7.self_attn.k_scale"
    assert "model.layers.7.self_attn.v_proj.v_scale" in values
    assert "model.layers.7.self_attn.kv_scale" in keys and "model.layers.7.self_attn.kv_scale" in (
        values
    )
