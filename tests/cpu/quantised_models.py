"""Owns tiny checkpoints whose matrices are quantised as producers of today write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from format_samples import packed, with_zeros
from safetensors.torch import save_file

from kernelgen.archs.registry import builtin_config, find_architecture
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.formats import weight_format
from kernelgen.formats.announcement import Scheme
from kernelgen.formats.reference import Quantised, quantise
from kernelgen.formats.stored import stored_matrix
from kernelgen.spec.config import ConfigFile

SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "head_dim": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 160,
    "max_position_embeddings": 256, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
Schemes = Mapping[str, Scheme]


def tiny_config(**more: Any) -> dict[str, Any]:
    """A built-in model shrunk to sizes that groups of 128 divide."""
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    return {**builtin_config("smollm2-135m-instruct").data, **ids, **SIZES, **more}


def modules(layers: int = 4) -> list[str]:
    """The products of its layers."""
    parts = [*(f"self_attn.{p}_proj" for p in "qkvo"),
             *(f"mlp.{p}_proj" for p in ("gate", "up", "down"))]  # fmt: skip
    return [f"model.layers.{i}.{part}" for i in range(layers) for part in parts]


def write_model(
    folder: Path, announced: Mapping[str, Any] | None, schemes: Schemes, **more: Any
) -> Path:
    """config.json and weights; modules of `schemes` are stored so, the others as bfloat16."""
    config = tiny_config(**more)
    architecture = find_architecture(ConfigFile("config.json", config))
    spec = architecture.read(ConfigFile("config.json", config))
    rules = architecture.checkpoint(spec, architecture.lower(spec, BFLOAT16))
    made, tensors = torch.Generator().manual_seed(5), {}
    for rule in rules:
        random = torch.randn(rule.shape, generator=made)
        vector = len(rule.shape) == 1
        plain = random * 0.3 + 1 if vector else random * rule.shape[-1] ** -0.5
        module = rule.name.removesuffix(".weight")
        if module in schemes:
            n, k = rule.shape
            tensors |= _stored(module, n, k, schemes[module], plain.numpy())
        else:
            tensors[rule.name] = plain.to(torch.bfloat16)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    if announced is not None:
        config["quantization_config"] = announced
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _stored(module: str, n: int, k: int, scheme: Scheme, plain: Any) -> dict[str, torch.Tensor]:
    matrix = stored_matrix(module, n, k, scheme, None)
    assert matrix.packing is not None
    tensors = {}
    for part, array in packed(matrix.kind, matrix.packing, _parts(scheme, plain)).items():
        tensor = _torch(array)
        if scheme.format.startswith(("fp8", "mxfp8")) and part == "codes":
            tensor = tensor.view(torch.float8_e4m3fn)
        if matrix.kind.scale.name == "e4m3" and part == "scale":
            tensor = tensor.view(torch.float8_e4m3fn)
        tensors[matrix.names[part]] = tensor
    if matrix.packing.zero == "qzeros" and not matrix.kind.zero:
        tensors[f"{module}.qzeros"] = torch.zeros(1, n // 8, dtype=torch.int32)
    if matrix.packing.arrangement == "bytes" or matrix.packing.factor:
        tensors[f"{module}.input_scale"] = torch.ones(())
    return tensors


def _parts(scheme: Scheme, plain: Any) -> Quantised:
    kind = weight_format(scheme.format)
    if not kind.zero:
        return quantise(kind, plain)
    parts = quantise(weight_format(scheme.format.removesuffix("_zp")), plain)
    near = with_zeros(kind, parts).zero
    assert near is not None
    return Quantised(parts.codes, parts.scale, (near % 3 + kind.code.offset - 1).astype(np.uint8))


def _torch(array: Any) -> torch.Tensor:
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))
