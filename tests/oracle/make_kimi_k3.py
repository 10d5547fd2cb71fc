"""Writes a tiny seeded kimi_k3 checkpoint with cases recorded from the plain model in float64.

    python make_kimi_k3.py CONFIG.json OUT_DIR [--seed N] [--steps N] [--packed]

The reference framework has no such class. What is written has the names, dtypes and padding of the
published files: rates longer than the heads, a draft block and two tensors of images that a text
loader passes over, and with --packed bfloat16 matrices and experts in MXFP4.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oracle_cases import Case, write_cases
from seeded import seeded_tensor

from kernelgen.archs.kimi_k3 import reference

SMALLEST_MARGIN = 0.005
ROOT = "language_model.model."
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
_FP32 = ("A_log", "dt_bias", "o_norm.weight", "_conv1d.weight", "e_score_correction_bias")
ANNOUNCED = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*lm_head.*",
               r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
        "symmetric": True, "scale_dtype": "torch.uint8"}}},
}  # fmt: skip


def make(
    config: Mapping[str, Any], out: Path, *, seed: int = 1, steps: int = 24, packed: bool = False
) -> list[Case]:
    """Writes the folder and returns its cases."""
    c = copy.deepcopy(dict(config))
    kind = torch.bfloat16 if packed else torch.float32
    c["dtype"] = c["text_config"]["dtype"] = str(kind).removeprefix("torch.")
    stored, exact = _tensors(c["text_config"], seed, kind, packed)
    if packed:
        c["text_config"]["quantization_config"] = ANNOUNCED
    random = np.random.default_rng(seed)
    vocab = c["text_config"]["vocab_size"]
    cases = [
        _case(c, exact, random.integers(4, vocab, n).tolist(), steps) for n in (1, 3, 7, 9, 29)
    ]
    out.mkdir(parents=True, exist_ok=True)
    _write(out, c, stored)
    write_cases(out, cases)
    return cases


def _case(
    config: Mapping[str, Any], weights: Mapping[str, Any], ids: list[int], steps: int
) -> Case:
    """Greedy steps, each computed anew from the first token on."""
    fed: list[int] = []
    margins = []
    for _ in range(steps):
        top = reference.forward(config, weights, [*ids, *fed])[-1].topk(2)
        margins.append(float(top.values[0] - top.values[1]))
        fed.append(int(top.indices[0]))
    assert min(margins) >= SMALLEST_MARGIN, f"greedy margin {min(margins)}: take another seed"
    logits = reference.forward(config, weights, [*ids, *fed]).float().numpy()
    return Case(f"p{len(ids)}", np.array(ids), logits[: len(ids)], np.array(fed),
                logits[len(ids) :], np.array(margins, np.float32))  # fmt: skip


def _tensors(
    c: Mapping[str, Any], seed: int, kind: torch.dtype, packed: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is stored, and what it means in float64."""
    stored: dict[str, Any] = {}
    exact: dict[str, Any] = {}
    for name, shape in _shapes(c):
        tensor = seeded_tensor(name, shape, seed)
        if packed and ".block_sparse_moe.experts." in name:
            nibbles, scales, meant = pack(tensor)
            base = name.removesuffix(".weight")
            stored[f"{base}.weight_packed"], stored[f"{base}.weight_scale"] = nibbles, scales
            exact[name] = meant
            continue
        stored[name] = tensor if name.endswith(_FP32) else tensor.to(kind)
        exact[name] = stored[name].double()
    return stored, exact


def pack(weight: Any) -> tuple[Any, Any, Any]:
    """Nibbles (the even column low), exponents of 32 columns, and the matrix that both mean."""
    n, k = weight.shape
    groups = weight.double().reshape(n, k // 32, 32)
    exponent = torch.floor(torch.log2(groups.abs().amax(-1).clamp(min=2.0**-100))) - 2
    scaled = groups / torch.exp2(exponent)[..., None]
    code = (scaled.abs()[..., None] - _E2M1).abs().argmin(-1)
    meant = _E2M1[code] * scaled.sign() * torch.exp2(exponent)[..., None]
    code = (code + 8 * (scaled < 0)).reshape(n, k).to(torch.uint8)
    nibbles = code[:, 0::2] | (code[:, 1::2] << 4)
    return nibbles, (exponent + 127).to(torch.uint8), meant.reshape(n, k)


def _shapes(c: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of the checkpoint."""
    hidden, layers = c["hidden_size"], c["num_hidden_layers"]
    yield f"{ROOT}embed_tokens.weight", (c["vocab_size"], hidden)
    yield "language_model.lm_head.weight", (c["vocab_size"], hidden)
    yield f"{ROOT}norm.weight", (hidden,)
    yield from _mixture(f"{ROOT}output_attn_res", hidden)
    for i in range(layers + c["num_nextn_predict_layers"]):
        name = f"{ROOT}layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{name}.{norm}.weight", (hidden,)
        for site in ("self_attention_res", "mlp_res"):
            yield from _mixture(f"{name}.{site}", hidden)
        scans = i + 1 in c["linear_attn_config"]["kda_layers"]
        yield from (_scan if scans else _attend)(c, f"{name}.self_attn.")
        if i < c["first_k_dense_replace"]:
            yield from _mlp(f"{name}.mlp.", hidden, c["intermediate_size"])
        else:
            yield from _experts(c, f"{name}.block_sparse_moe.")
    yield f"{ROOT}layers.{layers}.eh_proj.weight", (hidden, 2 * hidden)
    yield "vision_tower.encoder.final_layernorm.weight", (64,)
    yield "mm_projector.post_norm.weight", (hidden,)


def _mixture(name: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}_norm.weight", (hidden,)
    yield f"{name}_proj.weight", (1, hidden)


def _mlp(name: str, hidden: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}gate_proj.weight", (inner, hidden)
    yield f"{name}up_proj.weight", (inner, hidden)
    yield f"{name}down_proj.weight", (hidden, inner)


def _scan(c: Mapping[str, Any], name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    lin, hidden = c["linear_attn_config"], c["hidden_size"]
    heads, dim = lin["num_heads"], lin["head_dim"]
    size = heads * dim
    for p in ("q", "k", "v", "g"):
        yield f"{name}{p}_proj.weight", (size, hidden)
    for p in "qkv":
        yield f"{name}{p}_conv1d.weight", (size, 1, lin["short_conv_kernel_size"])
    yield f"{name}f_a_proj.weight", (dim, hidden)
    yield f"{name}f_b_proj.weight", (size, dim)
    yield f"{name}b_proj.weight", (heads, hidden)
    yield f"{name}A_log", (1 << heads.bit_length(),)
    yield f"{name}dt_bias", (size,)
    yield f"{name}o_norm.weight", (dim,)
    yield f"{name}o_proj.weight", (hidden, size)


def _attend(c: Mapping[str, Any], name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, beside, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    yield f"{name}q_a_proj.weight", (c["q_lora_rank"], hidden)
    yield f"{name}q_a_layernorm.weight", (c["q_lora_rank"],)
    yield f"{name}q_b_proj.weight", (heads * (nope + beside), c["q_lora_rank"])
    yield f"{name}kv_a_proj_with_mqa.weight", (rank + beside, hidden)
    yield f"{name}kv_a_layernorm.weight", (rank,)
    yield f"{name}kv_b_proj.weight", (heads * (nope + value), rank)
    yield f"{name}g_proj.weight", (heads * value, hidden)
    yield f"{name}o_proj.weight", (hidden, heads * value)


def _experts(c: Mapping[str, Any], name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = c["hidden_size"], c["moe_intermediate_size"]
    narrow = c["routed_expert_hidden_size"]
    yield f"{name}gate.weight", (c["num_experts"], hidden)
    yield f"{name}gate.e_score_correction_bias", (c["num_experts"],)
    yield f"{name}routed_expert_down_proj.weight", (narrow, hidden)
    yield f"{name}routed_expert_norm.weight", (narrow,)
    yield f"{name}routed_expert_up_proj.weight", (hidden, narrow)
    for e in range(c["num_experts"]):
        yield f"{name}experts.{e}.w1.weight", (inner, narrow)
        yield f"{name}experts.{e}.w3.weight", (inner, narrow)
        yield f"{name}experts.{e}.w2.weight", (narrow, inner)
    yield from _mlp(f"{name}shared_experts.", hidden, inner * c["num_shared_experts"])


def _write(out: Path, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file(dict(tensors), out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2))
    ids = {key: config["text_config"][key] for key in ("bos_token_id", "eos_token_id")}
    (out / "generation_config.json").write_text(json.dumps(ids))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--packed", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(1)
    config = json.loads(a.config.read_text())
    cases = make(config, a.out, seed=a.seed, steps=a.steps, packed=a.packed)
    margin = min(float(case.margin.min()) for case in cases)
    print(f"{a.out}: {len(cases)} cases, smallest greedy margin {margin:.4f}")


if __name__ == "__main__":
    main()
