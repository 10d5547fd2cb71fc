"""Quantised checkpoints from config to logits: announced in every form, mixed, partly quantised."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from model_builds import this_isa
from quantised_models import modules, write_model

from kernelgen.cli.building import build_model
from kernelgen.cli.model import resolve
from kernelgen.cli.verification import completed_cases
from kernelgen.formats.announcement import Scheme
from kernelgen.verify import model_checks
from kernelgen.verify.built import read_build
from kernelgen.verify.model_checks import ModelUnderTest, check_model


def layer_of(module: str) -> int:
    return int(module.split(".")[2])


def by_layer(*schemes: Scheme) -> dict[str, Scheme]:
    return {m: schemes[layer_of(m) % len(schemes)] for m in modules()}


def group(layer: int, bits: int, kind: str, strategy: str, size: int | None = None) -> Any:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": size}
    weights |= {"symmetric": True, "dynamic": False}
    return {"targets": [f"re:.*layers\\.{layer}\\."], "weights": weights}


# (config, what the checkpoint holds)
MIXED = (
    {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            "group_0": group(0, 4, "int", "group", 32),
            "group_1": group(1, 8, "float", "channel"),
            "group_2": group(2, 4, "float", "tensor_group", 16),
            "group_3": group(3, 4, "float", "group", 32),
        },
        "ignore": ["lm_head", "model.layers.0.mlp.down_proj"],
    },
    by_layer(
        Scheme("int4_g32", "packed_int"),
        Scheme("fp8_channel", "float8"),
        Scheme("nvfp4", "nvfp4_divisor"),
        Scheme("mxfp4", "nibbles"),
    ),
)
ROUND = (
    {
        "quant_method": "auto-round",
        "bits": 3,
        "group_size": 128,
        "sym": False,
        "data_type": "int",
        "packing_format": "auto_round",
        "block_name_to_quantize": "model.layers",
        "extra_config": {
            ".*layers\\.1\\..*": {"bits": 6, "sym": True},
            "model.layers.2.mlp.up_proj": {"bits": 16},
            ".*layers\\.3\\..*": {"bits": 7, "group_size": 32},
        },
    },
    by_layer(
        Scheme("int3_g128_f16_zp", "gptq_v2"),
        Scheme("int6_g128_f16", "gptq_v2"),
        Scheme("int3_g128_f16_zp", "gptq_v2"),
        Scheme("int7_g32_f16_zp", "gptq_v2"),
    ),
)
GPTQ = (
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False},
    by_layer(Scheme("int4_g128_f16_zp", "gptq")),
)
AWQ = (
    {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
    by_layer(Scheme("int4_g64_f16_zp", "awq")),
)
DEEPSEEK = (
    {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
     "activation_scheme": "dynamic"},
    by_layer(Scheme("fp8_block128", "float8_inv")),
)  # fmt: skip
MODELOPT = (
    {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8",
     "quantized_layers": {m: {"quant_algo": a} for m in modules()
                          for a in [("FP8", "W4A16_NVFP4", "MXFP8", "FP8")[layer_of(m)]]}},
    by_layer(Scheme("fp8_tensor", "float8"), Scheme("nvfp4", "nvfp4_factor"),
             Scheme("mxfp8", "float8"), Scheme("fp8_tensor", "float8")),
)  # fmt: skip
PLAIN = {"mixed": {"model.layers.0.mlp.down_proj"}, "round": {"model.layers.2.mlp.up_proj"}}
CASES = {"mixed": MIXED, "round": ROUND, "gptq": GPTQ, "awq": AWQ, "deepseek": DEEPSEEK,
         "modelopt": MODELOPT}  # fmt: skip


def model(tmp_path: Path, name: str) -> tuple[Path, dict[str, Scheme]]:
    announced, stored = CASES[name]
    schemes = {m: s for m, s in stored.items() if m not in PLAIN.get(name, ())}
    return write_model(tmp_path / "model", announced, schemes), schemes


def built(folder: Path, tmp_path: Path, online: Mapping[str, Any] | None = None) -> Path:
    path = None
    if online is not None:
        path = tmp_path / "online.json"
        path.write_text(json.dumps(online))
    made = build_model(
        resolve(str(folder)), ["cpu"], tmp_path / "out", isas=(this_isa(),), online=path
    )
    return Path(made.folder)


def formats(build: Path) -> dict[str, str]:
    """Module → format, as the manifest lists them."""
    manifest = json.loads((build / "manifest.json").read_text())
    return {
        next(iter(w["source"]["packed"]["tensors"].values())).rpartition(".")[0]: w["source"][
            "packed"
        ]["format"]
        for w in manifest["targets"][0]["weights"]
        if w["source"] != "checkpoint" and "packed" in w["source"]
    }


@pytest.mark.row("R-063")
@pytest.mark.row("R-064")
@pytest.mark.parametrize("name", CASES)
def test_from_config_to_logits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_checks, "CHUNKS", (7,))  # each is a process
    folder, schemes = model(tmp_path, name)
    online = {"targets": {"model.layers.0.mlp.down_proj": "fp8_per_channel"}}
    build = built(folder, tmp_path, online if name == "mixed" else None)
    wanted = {m: s.format for m, s in schemes.items()}
    if name == "mixed":
        wanted["model.layers.0.mlp.down_proj"] = "fp8_channel"
    assert formats(build) == wanted
    subject = read_build(build)
    cases = completed_cases(resolve(str(folder)), subject, None)
    checks = check_model(ModelUnderTest(subject, folder), cases)
    missed = [f"{c.subject} {c.what}: {c.error} {c.detail}" for c in checks if not c.passed]
    assert not missed, "\n".join(missed)
