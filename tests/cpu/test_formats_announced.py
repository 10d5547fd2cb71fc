"""What configs announce, in every form; what is refused, by name and with what is supported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantised_models import modules, tiny_config, write_model

from kernelgen.archs.registry import architectures
from kernelgen.cli.model import ModelSource
from kernelgen.cli.pipeline import lowered
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.core.errors import KernelgenError
from kernelgen.formats import weight_format
from kernelgen.formats.announced import read_announcement
from kernelgen.formats.announcement import Scheme
from kernelgen.formats.assign import Held, Module, assign
from kernelgen.formats.online import Products, read_online
from kernelgen.formats.stored import stored_matrix
from kernelgen.ir.reformat import router_weights
from kernelgen.spec.config import ConfigFile, read_config

KIMI = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
                        "symmetric": True, "dynamic": False},
            "input_activations": None,
        }
    },
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
               "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "kv_cache_scheme": None,
}  # fmt: skip
NEMOTRON = {
    "producer": {"name": "modelopt", "version": "0.29.0"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                     "exclude_modules": ["lm_head", "backbone.layers.4.mixer.in_proj", "model.*"]},
}  # fmt: skip
ROUND = {
    "quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int",
    "packing_format": "auto_round:auto_gptq", "autoround_version": "0.16.1",
    "extra_config": {".*mlp\\.gate.*": {"bits": 16}, "model.layers.0.mlp.down_proj": {"bits": 6}},
}  # fmt: skip
DEEPSEEK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True,
        "checkpoint_format": "gptq"}  # fmt: skip
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPT_OSS = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn",
           "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}  # fmt: skip
QUARK = {"quant_method": "quark", "exclude": ["lm_head", "*router*"],
         "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3",
                                                           "qscheme": "per_channel"}},
                                "*down_proj": {"weight": None}},
         "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group",
                                            "group_size": 32, "scale_format": "e8m0"}},
         "kv_cache_quant_config": {"*k_proj": {"dtype": "fp8_e4m3"}}}  # fmt: skip
ATTENTION, EXPERT = "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.experts.3.up_proj"


def compressed(**weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": "mixed", "config_groups": groups}


@pytest.mark.parametrize(
    ("config", "module", "wanted"),
    [
        (KIMI, EXPERT, Scheme("int4_g32", "packed_int")),
        (KIMI, ATTENTION, None),
        (KIMI, "lm_head", None),
        (NEMOTRON, "backbone.layers.4.mixer.in_proj", None),
        (NEMOTRON, "backbone.layers.4.mixer.out_proj", Scheme("nvfp4", "nvfp4_factor")),
        (NEMOTRON, "model.x", None),
        (ROUND, "model.layers.3.mlp.up_proj", Scheme("int4_g128_f16", "gptq")),
        (ROUND, "model.layers.3.mlp.gate_proj", None),
        (ROUND, "model.layers.0.mlp.down_proj", Scheme("int6_g128_f16", "gptq")),
        (ROUND, "lm_head", None),
        (DEEPSEEK, ATTENTION, Scheme("fp8_block128", "float8_inv")),
        ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["q_proj"]},
         ATTENTION, None),
        (GPTQ, ATTENTION, Scheme("int4_g128_f16", "gptq")),
        ({**GPTQ, "sym": False, "checkpoint_format": "gptq_v2"}, ATTENTION,
         Scheme("int4_g128_f16_zp", "gptq_v2")),
        (AWQ, ATTENTION, Scheme("int4_g128_f16_zp", "awq")),
        (GPT_OSS, ATTENTION, None),
        (GPT_OSS, "model.layers.0.mlp.router", None),
        (GPT_OSS, "model.layers.0.mlp.experts", Scheme("mxfp4", "nibbles_plain")),
        (QUARK, ATTENTION, Scheme("fp8_channel", "float8")),
        (QUARK, "model.layers.3.mlp.up_proj", Scheme("mxfp4", "nibbles_plain")),
        (QUARK, "model.layers.3.mlp.down_proj", None),
        (QUARK, "model.layers.3.mlp.router.layer", None),
        (compressed(num_bits=8, type="float", strategy="channel"), ATTENTION,
         Scheme("fp8_channel", "float8")),
        (compressed(num_bits=8, type="float", strategy="block", block_structure=[128, 128]),
         ATTENTION, Scheme("fp8_block128", "float8")),
        (compressed(num_bits=4, type="float", strategy="tensor_group", group_size=16), ATTENTION,
         Scheme("nvfp4", "nvfp4_divisor")),
        (compressed(num_bits=4, type="int", strategy="group", group_size=128, symmetric=False),
         ATTENTION, Scheme("int4_g128_zp", "packed_int")),
    ],
)  # fmt: skip
def test_announced(config: dict[str, Any], module: str, wanted: Scheme | None) -> None:
    assert read_announcement(config, half=False).scheme(module) == wanted


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes' .allowed: auto-round"),
        ({}, "quant_method is None"),
        ({**GPTQ, "desc_act": True}, "desc_act: is True"),
        ({**GPTQ, "bits": 9}, "bits: is 9 .allowed: 2 to 8"),
        ({**GPTQ, "group_size": 48}, "group_size: is 48"),
        ({**GPTQ, "group_size": -1, "sym": False}, "group_size: is -1"),
        ({**AWQ, "version": "marlin"}, "version: is 'marlin' .allowed: gemm"),
        ({**DEEPSEEK, "weight_block_size": [64, 64]}, "weight_block_size: is .64, 64"),
        ({**DEEPSEEK, "fmt": "e5m2"}, "fmt: is 'e5m2'"),
        ({**ROUND, "packing_format": "exllama"}, "packing_format: is 'exllama'"),
        ({**NEMOTRON, "quantization": {"quant_algo": "INT8_SQ"}}, "quant_algo: is 'INT8_SQ'"),
        (compressed(num_bits=4, type="float", strategy="group", group_size=64),
         "weights: is '4-bit"),
        (compressed(num_bits=4, type="int", strategy="group", group_size=128, actorder="group"),
         "actorder: is 'group'"),
        ({**KIMI, "ignore": ["re:(unclosed"]}, "pattern '.unclosed'"),
        ({**KIMI, "config_groups": {}}, "config_groups: is {}"),
        ({"quant_method": "quark"}, "global_quant_config: names no format"),
        ({**QUARK, "layer_quant_config": [1]}, "layer_quant_config: is .1. .allowed: an object"),
        ({**QUARK, "global_quant_config": {"weight": {"dtype": "int3"}}}, "weight: is 'int3, None"),
        ({**QUARK, "global_quant_config": 3}, "global_quant_config: is 3 .allowed: an object"),
    ],
)  # fmt: skip
def test_refused(config: dict[str, Any], told: str) -> None:
    with pytest.raises(KernelgenError, match=told):
        read_announcement(config, half=False)


@pytest.mark.parametrize(
    ("n", "k", "scheme", "told"),
    [
        (64, 65, Scheme("mxfp4", "nibbles"), "K = 65 is odd"),
        (64, 96, Scheme("int4_g128_f16", "gptq"), "no multiple of the group of 128"),
        (60, 128, Scheme("int4_g128_f16_zp", "awq"), "N = 60 does not fill words"),
        (64, 100, Scheme("int3_g32_f16", "gptq"), "K = 100 does not fill int32 words"),
    ],
)
def test_sizes_that_do_not_fit(n: int, k: int, scheme: Scheme, told: str) -> None:
    with pytest.raises(KernelgenError, match=told):
        stored_matrix("m", n, k, scheme, None)


# --- header and config ---------------------------------------------------------------------------

MODULES = {m: Module(m, 64, 64, True) for m in ("a.up", "a.down")}
INT4 = {"a.up.weight_packed": ("I32", (64, 8)), "a.up.weight_scale": ("BF16", (64, 2)),
        "a.up.weight_shape": ("I64", (2,)), "a.down.weight": ("BF16", (64, 64))}  # fmt: skip
EVERY = read_announcement({**KIMI, "ignore": []}, half=False)
NONE = read_announcement({**KIMI, "ignore": ["re:.*"]}, half=False)


def test_the_header_decides() -> None:
    found = assign(Held(MODULES), EVERY, None, INT4)
    assert {m: x.kind.name for m, x in found.matrices.items()} == {"a.up": "int4_g32"}
    assert "1 matrices are announced as quantised and stored plainly" in found.notes[0]
    half = {**INT4, "a.up.weight_scale": ("F16", (64, 2))}
    assert assign(Held(MODULES), EVERY, None, half).matrices["a.up"].kind.name == "int4_g32_f16"


def test_packed_without_being_announced() -> None:
    for announcement in (NONE, None):
        with pytest.raises(KernelgenError, match=r"a\.up is packed in the checkpoint"):
            assign(Held(MODULES), announcement, None, INT4)


def test_scales_missing() -> None:
    header = {k: v for k, v in INT4.items() if k != "a.up.weight_scale"}
    with pytest.raises(
        KernelgenError, match=r"a\.up\.weight_scale: a\.up is quantised as int4_g32"
    ):
        assign(Held(MODULES), EVERY, None, header)


# --- online --------------------------------------------------------------------------------------


@pytest.mark.row("R-064")
def test_nothing_is_quantised_twice() -> None:
    online = read_online({"linear": "fp8_per_channel"}, "file")
    found = assign(Held(MODULES), EVERY, online, INT4)
    assert {m: x.kind.name for m, x in found.matrices.items()} == {
        "a.up": "int4_g32", "a.down": "fp8_channel"}  # fmt: skip
    assert found.matrices["a.up"].packing is not None
    assert "1 matrices keep the format" in found.notes[-1]


@pytest.mark.row("R-063")
def test_targets_choose_modules() -> None:
    online = read_online({"targets": {"re:.*up$": "mxfp4"}, "ignore": ["a.down"]}, "file")
    found = assign(Held(MODULES, ("a.norm",)), None, online, None)
    assert {m: x.kind for m, x in found.matrices.items()} == {"a.up": weight_format("mxfp4")}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"targets": {"a.*": "mxfp4", "re:.*up": "mxfp8"}}, "a.* and .*up match a.up"),
        ({"targets": {"a.up": "mxfp4"}, "ignore": ["a.*"]}, "a.up and ignore a.* match a.up"),
        ({"targets": {"a.nothing": "mxfp4"}}, "a.nothing matches no product"),
        ({"targets": {"*": "mxfp4"}}, "* matches a.norm, which is no product"),
    ],
)
def test_contradicting_targets(data: dict[str, Any], told: str) -> None:
    with pytest.raises(KernelgenError) as caught:
        read_online(data, "file").chosen(Products(tuple(MODULES), others=("a.norm",)))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, "asks for nothing"),
        ({"linear": "fp8"}, "file: linear: is 'fp8' (allowed: fp8_per_tensor"),
        ({"linear": "int4_g32_zp"}, "without zero points"),
        ({"linear": "mxfp4", "targets": {"a": "mxfp4"}}, "exclude each other"),
        ({"moe": "mxfp4", "targets": {"a": "mxfp4"}}, "moe and targets exclude each other"),
        ({"moe": "fp8"}, "file: moe: is 'fp8' (allowed: fp8_per_tensor"),
        ({"layers": "mxfp4"}, "key 'layers' (allowed: linear, moe, ignore, targets)"),
        ({"targets": ["a"]}, "targets: is ['a']"),
    ],
)
def test_bad_online_files(data: dict[str, Any], told: str) -> None:
    with pytest.raises(KernelgenError) as caught:
        read_online(data, "file")
    assert told in str(caught.value)


# --- models --------------------------------------------------------------------------------------


def test_config_alone_is_enough() -> None:
    config = {**tiny_config(), "quantization_config": DEEPSEEK}
    model = lowered(ModelSource("m", "m", ConfigFile("config.json", config)), "bfloat16")
    assert {m.kind.name for m in model.matrices.values()} == {"fp8_block128"}
    assert len(model.matrices) == len(modules())
    assert len([b for b in model.graph.blocks if b.name.startswith("layer")]) == 1


@pytest.mark.parametrize(
    ("name", "data"), [("hf_quant_config.json", NEMOTRON), ("quantize_config.json", GPTQ)]
)
def test_side_files(name: str, data: dict[str, Any], tmp_path: Path) -> None:
    scheme = Scheme("nvfp4", "nvfp4_factor") if "quantization" in data else Scheme(
        "int4_g128_f16", "gptq")  # fmt: skip
    folder = write_model(tmp_path / "m", None, {m: scheme for m in modules()})
    if "quantization" in data:
        data = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    (folder / name).write_text(json.dumps({k: v for k, v in data.items() if k != "quant_method"}))
    source = ModelSource(
        "m", "m", ConfigFile("c", json.loads((folder / "config.json").read_text()))
    )
    from dataclasses import replace

    model = lowered(replace(source, folder=folder), "bfloat16")
    assert {m.kind.name for m in model.matrices.values()} == {scheme.format}


def test_routers_are_found_in_the_graph() -> None:
    found = [
        (architecture, router_weights(architecture.lower(spec, BFLOAT16)))
        for architecture in architectures().values()
        for spec in (architecture.read(read_config(architecture.folder / "tiny.json")),)
    ]
    routed = {a.name: names for a, names in found if names}
    assert routed, "an architecture with experts"
    for names in routed.values():
        assert all("router" in name or "gate" in name for name in names)
