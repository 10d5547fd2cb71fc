"""Weights with the right shapes of another model: its config tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from kernelgen_runtime import LLM
from kernelgen_runtime.errors import WeightsError
from safetensors.torch import save_file

from tests.model_builds import build, small_config


def weights(folder: Path, built: Path, config: dict[str, Any] | None) -> Path:
    """Zeros of every shape that the build wants, beside a config."""
    told = json.loads((built / "manifest.json").read_text())["tensors"]
    tensors = {t["name"]: torch.zeros(t["shape"]) for t in told if not t.get("optional")}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(small_config(1), tmp_path_factory.mktemp("small"))


def opened(built: Path, folder: Path) -> LLM:
    return LLM(built, folder, device="cpu", threads=1, max_num_seqs=1)


@pytest.mark.parametrize(
    ("name", "value"), [("rope_theta", 5e5), ("rms_norm_eps", 1e-6), ("hidden_act", "gelu_new")]
)
def test_another_model_of_the_same_shapes_is_told(
    built: Path, tmp_path: Path, name: str, value: object
) -> None:
    config = small_config(1)
    assert config[name] != value
    other = weights(tmp_path / "w", built, config | {name: value})
    with pytest.raises(WeightsError, match=f"{name}: .*built for") as raised:
        opened(built, other)
    assert "config.json" in str(raised.value)


@pytest.mark.parametrize("change", ["none", "names of today", "other tokens"])
def test_the_model_itself_is_taken(built: Path, tmp_path: Path, change: str) -> None:
    config = small_config(1)
    if change == "names of today":
        config = {**config, "rope_parameters": {"rope_type": "default"}, "new_name": 1}
        del config["rope_theta"]
    elif change == "other tokens":
        config |= {"eos_token_id": 5, "torch_dtype": "float32", "transformers_version": "9"}
    folder = weights(tmp_path / "w", built, config)
    opened(built, folder)
    opened(built, folder / "model.safetensors")


@pytest.mark.parametrize("name", ["", "model.safetensors"])
def test_weights_of_which_nothing_tells_are_refused(built: Path, tmp_path: Path, name: str) -> None:
    folder = weights(tmp_path / "w", built, None)
    with pytest.raises(WeightsError, match=r"has no config\.json.*copy the one of its checkpoint"):
        opened(built, folder / name)


def test_a_config_that_is_none(built: Path, tmp_path: Path) -> None:
    folder = weights(tmp_path / "w", built, None)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(WeightsError, match="must be a JSON object"):
        opened(built, folder)
