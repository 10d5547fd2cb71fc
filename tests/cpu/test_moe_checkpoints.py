"""Quantised experts from a checkpoint to logits: stacks as producers name them, and one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from format_samples import packed
from model_builds import QUICK, compiler, this_isa
from safetensors.torch import save_file

from kernelgen.archs.architecture import Architecture
from kernelgen.archs.registry import architectures
from kernelgen.cli.building import build_model
from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import lowered
from kernelgen.cli.verification import completed_cases
from kernelgen.codegen.families import catalogue
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.core.errors import KernelgenError
from kernelgen.formats import weight_format
from kernelgen.formats.packing import PACKINGS
from kernelgen.formats.reference import quantise
from kernelgen.hw import parse_target
from kernelgen.pack.slices import slice_map
from kernelgen.planner.planner import Planner
from kernelgen.spec.config import ConfigFile
from kernelgen.verify import model_checks
from kernelgen.verify.built import read_build
from kernelgen.verify.model_checks import ModelUnderTest, check_model

TOGETHER = {"hidden_size": 128, "intermediate_size": 128, "shared_intermediate_size": 128,
           "num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"],
           "layer_rope_theta": [10000.0, 0], "num_local_experts": 4,
           "num_experts_per_tok": 2}  # fmt: skip
ALONE = {
    "hidden_size": 64,
    "moe_intermediate_size": 64,
    "intermediate_size": 96,
    "kv_lora_rank": 28,
}


def weights(bits: int, kind: str, strategy: str, size: int | None) -> dict[str, Any]:
    told = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": size}
    return told | {"symmetric": True, "dynamic": False}


def compressed(target: str, *of: Any) -> dict[str, Any]:
    group = {"targets": [target], "weights": weights(*of)}
    return {"quant_method": "compressed-tensors", "format": "x", "config_groups": {"g": group},
            "ignore": ["lm_head", "re:.*(router|gate)$"]}  # fmt: skip


@dataclass(frozen=True)
class Producer:
    """How somebody writes a model with quantised experts. `names`: part → what a tensor's name
    gets; `shape`: how a part of a stack is stored; `which`: the tensors that are quantised."""

    announced: Mapping[str, Any]
    format: str
    packing: str
    names: Mapping[str, str]
    sizes: Mapping[str, Any] = field(default_factory=lambda: TOGETHER)
    which: Callable[[str], bool] = lambda name: ".experts." in name
    shape: Callable[[str, Any], Any] = lambda part, array: array
    unread: Mapping[str, Any] = field(default_factory=dict)

    @property
    def routed_layers(self) -> int:
        return 2 if self.sizes is TOGETHER else 4

    @property
    def architecture(self) -> Architecture:
        """The first one whose config has all those sizes."""
        return next(a for a in architectures().values() if set(self.sizes) <= set(tiny(a)))


def tiny(architecture: Architecture) -> dict[str, Any]:
    """Its smallest config."""
    found: dict[str, Any] = json.loads((architecture.folder / "tiny.json").read_text())
    return found


def whole_blocks(part: str, array: Any) -> Any:
    return array.reshape(*array.shape[:-1], -1, 16) if part == "codes" else array


def all_products(name: str) -> bool:
    return any(word in name for word in ("_proj", "_linear"))


PRODUCERS = {
    "transformers, FP8 blocks": Producer(
        {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
        "fp8_block128", "float8_inv", {"codes": "", "scale": "_scale_inv"},
        which=all_products,
    ),
    "gpt-oss": Producer(
        {"quant_method": "mxfp4",
         "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.shared_mlp",
                                    "model.layers.*.router", "model.embed_tokens", "lm_head"]},
        "mxfp4", "nibbles_blocks", {"codes": "_blocks", "scale": "_scales"}, shape=whole_blocks,
    ),
    "compressed-tensors, NVFP4": Producer(
        compressed("re:.*\\.experts\\..*", 4, "float", "tensor_group", 16),
        "nvfp4", "nvfp4_divisor",
        {"codes": "_packed", "scale": "_scale", "factor": "_global_scale"},
        unread={"_input_global_scale": torch.ones(4, 1)},
    ),
    "ModelOpt, NVFP4": Producer(
        {"quant_method": "modelopt", "quant_algo": "NVFP4",
         "exclude_modules": ["*self_attn*", "*shared_mlp*", "*router*", "lm_head"]},
        "nvfp4", "nvfp4_factor",
        {"codes": "", "scale": "_weight_scale", "factor": "_weight_scale_2"},
    ),
    "compressed-tensors, INT4": Producer(
        compressed("Linear", 4, "int", "group", 32),
        "int4_g32", "packed_int", {"codes": "_packed", "scale": "_scale"},
        which=all_products,
    ),
    "compressed-tensors, FP8 by channel": Producer(
        compressed("re:.*\\.experts\\..*", 8, "float", "channel", None),
        "fp8_channel", "float8", {"codes": "", "scale": "_scale"},
    ),
    "INT4 matrix by matrix": Producer(
        compressed("re:.*\\.experts\\..*", 4, "int", "group", 32),
        "int4_g32", "packed_int", {"codes": "_packed", "scale": "_scale"}, ALONE,
        unread={"_shape": torch.zeros(2, dtype=torch.int64)},
    ),
    "MXFP4 matrix by matrix": Producer(
        compressed("re:.*\\.experts\\..*", 4, "float", "group", 32),
        "mxfp4", "nibbles", {"codes": "_packed", "scale": "_scale"}, ALONE,
    ),
}  # fmt: skip


def write(folder: Path, producer: Producer) -> Path:
    """config.json and the weights as the producer names them."""
    architecture = producer.architecture
    config = tiny(architecture) | producer.sizes
    config |= {"dtype" if "dtype" in config else "torch_dtype": "bfloat16"}
    spec = architecture.read(ConfigFile("config.json", config))
    made, tensors = torch.Generator().manual_seed(3), dict[str, torch.Tensor]()
    shapes = {r.name: r.shape for r in architecture.checkpoint(
        spec, architecture.lower(spec, BFLOAT16))}  # fmt: skip
    for name, shape in shapes.items():
        plain = torch.randn(shape, generator=made)
        vector = len(shape) == 1 or max(shape) == plain.numel()
        plain = plain * 0.1 + ("norm" in name) if vector else plain * shape[-1] ** -0.5
        if producer.which(name) and not vector:
            tensors |= quantised(name, plain, producer)
        else:
            tensors[name] = plain.to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps(config | {"quantization_config": producer.announced})
    )
    return folder


def quantised(name: str, plain: torch.Tensor, producer: Producer) -> dict[str, torch.Tensor]:
    """A tensor's matrices, each with scales of its own; bfloat16 scales as int16 views."""
    kind, packing = weight_format(producer.format), PACKINGS[producer.packing]
    matrices = plain.numpy()[None] if plain.ndim == 2 else plain.numpy()
    each = [packed(kind, packing, quantise(kind, one)) for one in matrices]
    found = {}
    for part, end in producer.names.items():
        array = np.stack([one[part] for one in each]) if plain.ndim > 2 else each[0][part]
        array = producer.shape(part, array) if plain.ndim > 2 else array
        if array.dtype == np.uint16:
            tensor = torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(np.ascontiguousarray(array))
        e4m3 = kind.scale.name == "e4m3" if part == "scale" else kind.code.name == "e4m3"
        if e4m3 and part != "factor":
            tensor = tensor.view(torch.uint8).view(torch.float8_e4m3fn)
        found[f"{name}{end}"] = tensor
    return found | {f"{name}{end}": tensor.clone() for end, tensor in producer.unread.items()}


@pytest.mark.row("R-064")
@pytest.mark.parametrize("name", PRODUCERS)
def test_from_config_to_logits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_checks, "CHUNKS", (7,))  # each is a process
    monkeypatch.setenv("CXX", compiler(tmp_path / "g++", QUICK))
    producer = PRODUCERS[name]
    folder = write(tmp_path / "model", producer)
    made = build_model(resolve(str(folder)), ["cpu"], tmp_path / "out", isas=(this_isa(),))
    manifest = json.loads((Path(made.folder) / "manifest.json").read_text())
    packed_weights = {
        w["name"]: w["source"]["packed"]
        for w in manifest["targets"][0]["weights"]
        if isinstance(w["source"], dict) and "packed" in w["source"]
    }
    experts = [n for n in packed_weights if ".experts." in n]
    assert len(experts) == 3 * producer.routed_layers
    assert {p["format"] for p in packed_weights.values()} == {producer.format}
    subject = read_build(Path(made.folder))
    checks = check_model(
        ModelUnderTest(subject, folder), completed_cases(resolve(str(folder)), subject, None)
    )
    missed = [f"{c.subject} {c.what}: {c.error} {c.detail}" for c in checks if not c.passed]
    assert not missed, "\n".join(missed)
    for tp, ep in ((1, 2), (2, 1)):
        if (tp, producer.format) == (2, "fp8_block128"):
            with pytest.raises(KernelgenError, match="cannot be shared by 2 ranks"):
                slice_map(manifest, tp, ep)
            continue
        check_slices(manifest, tp, ep, folder)


def check_slices(manifest: Mapping[str, Any], tp: int, ep: int, folder: Path) -> None:
    """What ranks take of codes of experts is all of them, each once."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    taken = {
        n: torch.zeros(t.shape, dtype=torch.int) for n, t in tensors.items() if ".experts." in n
    }
    for rank in slice_map(manifest, tp, ep):
        for weight in rank.weights:
            for piece in weight.slices:
                if piece.part == "codes" and piece.tensor in taken:
                    seen = taken[piece.tensor].view(piece.view)
                    seen[tuple(slice(*r) for r in piece.box)] += 1
    codes = [t for n, t in taken.items() if n.endswith(("proj", "_packed", "_blocks", ".weight"))]
    assert codes and all((t == 1).all() for t in codes)


@pytest.mark.parametrize("name", ["gpt-oss", "transformers, FP8 blocks"])
def test_a_gpu_plans_them(name: str, tmp_path: Path) -> None:
    model = lowered(resolve(str(write(tmp_path, PRODUCERS[name]))), "bfloat16")
    device = parse_target("sm_90")
    planner = Planner(model.graph, device, device.target, catalogue(device))
    families = {k.match.family.name for k in planner.plan("decode", 1).kernels}
    assert "experts_pairs" in families and planner.plan("mixed", 512).launches


def spoiled(tmp_path: Path, name: str, change: Callable[[dict[str, torch.Tensor]], None]) -> str:
    """What is told of a checkpoint in which something was changed."""
    from safetensors.torch import load_file

    folder = write(tmp_path, PRODUCERS[name])
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(KernelgenError) as caught:
        lowered(resolve(str(folder)), "bfloat16")
    return str(caught.value)


STACK = "model.layers.0.block_sparse_moe.experts.gate_up_proj"
MATRIX = "model.layers.1.block_sparse_moe.experts.3.w1.weight"


def test_an_expert_that_is_stored_in_another_way(tmp_path: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for end in ("_packed", "_scale", "_shape"):
            del tensors[f"{MATRIX}{end}"]
        tensors[MATRIX] = torch.zeros(64, 64, dtype=torch.bfloat16)

    told = spoiled(tmp_path, "INT4 matrix by matrix", change)
    assert "experts.3.w1 is not stored as" in told and "one format for all experts" in told


@pytest.mark.parametrize(
    ("name", "lost"),
    [("gpt-oss", f"{STACK}_scales"), ("transformers, FP8 blocks", f"{STACK}_scale_inv"),
     ("INT4 matrix by matrix", f"{MATRIX}_scale")],
)  # fmt: skip
def test_scales_that_are_missing(name: str, lost: str, tmp_path: Path) -> None:
    told = spoiled(tmp_path, name, lambda tensors: tensors.__delitem__(lost))
    assert lost.removesuffix("s") in told and "missing" in told
