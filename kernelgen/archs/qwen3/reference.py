"""Owns the plain model: formulas on raw config and checkpoint names, nothing of the compiler."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def forward(config: Mapping[str, Any], weights: Mapping[str, Tensor], ids: Sequence[int]) -> Tensor:
    """Logits `[tokens, vocabulary]` of one prompt, in the dtype of the weights."""
    eps = config.get("rms_norm_eps", 1e-6)
    x = weights["model.embed_tokens.weight"][torch.tensor(list(ids), dtype=torch.int64)]
    for i in range(config["num_hidden_layers"]):
        layer = {
            name.removeprefix(f"model.layers.{i}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"model.layers.{i}.")
        }
        y = F.rms_norm(x, x.shape[-1:], layer["input_layernorm.weight"], eps)
        x = x + _attention(config, layer, y, eps)
        y = F.rms_norm(x, x.shape[-1:], layer["post_attention_layernorm.weight"], eps)
        gate = F.silu(y @ layer["mlp.gate_proj.weight"].T)
        x = x + (gate * (y @ layer["mlp.up_proj.weight"].T)) @ layer["mlp.down_proj.weight"].T
    x = F.rms_norm(x, x.shape[-1:], weights["model.norm.weight"], eps)
    tied = config.get("tie_word_embeddings", False)
    return x @ weights["model.embed_tokens.weight" if tied else "lm_head.weight"].T


def _attention(
    config: Mapping[str, Any], layer: Mapping[str, Tensor], x: Tensor, eps: float
) -> Tensor:
    """Head norms come before the rotation; heads × head_dim need not be the hidden size."""
    heads, dim, count = config["num_attention_heads"], config.get("head_dim", 128), len(x)

    def project(part: str) -> Tensor:
        name = f"self_attn.{part}_proj"
        return F.linear(x, layer[f"{name}.weight"], layer.get(f"{name}.bias")).view(count, -1, dim)

    q = F.rms_norm(project("q"), (dim,), layer["self_attn.q_norm.weight"], eps)
    k = F.rms_norm(project("k"), (dim,), layer["self_attn.k_norm.weight"], eps)
    q, k = _rotated(config, q), _rotated(config, k)
    q, k, v = (z.transpose(0, 1)[None] for z in (q, k, project("v")))
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=1 / math.sqrt(dim), enable_gqa=True
    )
    flat = out[0].transpose(0, 1).reshape(count, heads * dim)
    name = "self_attn.o_proj"
    return F.linear(flat, layer[f"{name}.weight"], layer.get(f"{name}.bias"))


def _rotated(config: Mapping[str, Any], x: Tensor) -> Tensor:
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    assert rope.get("rope_type", "default") == "default"
    theta, half = rope.get("rope_theta", config.get("rope_theta", 10000.0)), x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(len(x), dtype=x.dtype)[:, None, None] * frequencies
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)
