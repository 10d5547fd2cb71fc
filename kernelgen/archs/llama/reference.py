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
    x = weights["model.embed_tokens.weight"][torch.tensor(list(ids), dtype=torch.int64)]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        y = _norm(config, weights, f"{layer}.input_layernorm", x)
        x = x + _attention(config, weights, f"{layer}.self_attn", y)
        y = _norm(config, weights, f"{layer}.post_attention_layernorm", x)
        gate = F.silu(_project(weights, f"{layer}.mlp.gate_proj", y))
        up = _project(weights, f"{layer}.mlp.up_proj", y)
        x = x + _project(weights, f"{layer}.mlp.down_proj", gate * up)
    head = "model.embed_tokens" if config.get("tie_word_embeddings", False) else "lm_head"
    return _project(weights, head, _norm(config, weights, "model.norm", x))


def _project(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _norm(config: Mapping[str, Any], weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    mean = x.pow(2).mean(-1, keepdim=True)
    return weights[f"{name}.weight"] * x / torch.sqrt(mean + config.get("rms_norm_eps", 1e-6))


def _attention(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], name: str, x: Tensor
) -> Tensor:
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    dim = config.get("head_dim") or config["hidden_size"] // heads
    count = len(x)
    q, k, v = (
        _project(weights, f"{name}.{part}_proj", x).view(count, -1, dim).transpose(0, 1)
        for part in "qkv"
    )
    angles = torch.arange(count, dtype=x.dtype)[:, None] * _frequencies(config, dim, x.dtype)
    q, k = _rotated(q, angles), _rotated(k, angles)
    k, v = (z.repeat_interleave(heads // groups, dim=0) for z in (k, v))
    future = torch.ones(count, count, dtype=torch.bool).triu(1)
    scores = (q @ k.mT / math.sqrt(dim)).masked_fill(future, -math.inf)
    mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, heads * dim)
    return _project(weights, f"{name}.o_proj", mixed)


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Each pair (i, i + dim/2) as a complex number, turned by its angle."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def _frequencies(config: Mapping[str, Any], dim: int, dtype: torch.dtype) -> Tensor:
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    plain: Tensor = theta ** (-torch.arange(0, dim, 2, dtype=dtype) / dim)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "linear":
        return plain / float(rope["factor"])
    if kind == "llama3":
        wavelength = 2 * math.pi / plain
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        turns = float(rope["original_max_position_embeddings"]) / wavelength
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return plain * (kept + (1 - kept) / float(rope["factor"]))
    assert kind == "default", kind
    return plain
