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
    table = weights["model.embed_tokens.weight"]
    residual = config.get("residual_multiplier", 1.0)
    x = table[torch.tensor(list(ids), dtype=torch.int64)] * config.get("embedding_multiplier", 1.0)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        y = _norm(config, x, weights[f"{layer}.input_layernorm.weight"])
        x = x + residual * _attention(config, weights, i, y)
        y = _norm(config, x, weights[f"{layer}.post_attention_layernorm.weight"])
        x = x + residual * (_routed(config, weights, layer, y) + _shared(weights, layer, y))
    x = _norm(config, x, weights["model.norm.weight"])
    tied = config.get("tie_word_embeddings", False)
    head = table if tied else weights["lm_head.weight"]
    logits: Tensor = x @ head.T / config.get("logits_scaling", 1.0)
    return logits


def _routed(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], layer: str, x: Tensor
) -> Tensor:
    """Each token through its best experts, weighted by the softmax over their logits alone."""
    name = f"{layer}.block_sparse_moe"
    logits = x @ weights[f"{name}.router.weight"].T
    order = torch.argsort(-logits, dim=-1, stable=True)[:, : config.get("num_experts_per_tok", 2)]
    share = logits.gather(1, order).softmax(-1)
    inputs, outputs = (weights[f"{name}.experts.{p}_proj"] for p in ("gate_up", "down"))
    rows = []
    for row, chosen, part in zip(x, order.tolist(), share, strict=True):
        made = [_swiglu(row, inputs[e], outputs[e]) for e in chosen]
        rows.append((part[:, None] * torch.stack(made)).sum(0))
    return torch.stack(rows)


def _shared(weights: Mapping[str, Tensor], layer: str, x: Tensor) -> Tensor:
    name = f"{layer}.shared_mlp"
    if f"{name}.input_linear.weight" not in weights:
        return torch.zeros_like(x)
    inputs, outputs = (weights[f"{name}.{p}_linear.weight"] for p in ("input", "output"))
    return _swiglu(x, inputs, outputs)


def _swiglu(x: Tensor, inputs: Tensor, outputs: Tensor) -> Tensor:
    """The upper half of `inputs` is the gate."""
    gate, up = (x @ inputs.T).chunk(2, dim=-1)
    made: Tensor = (F.silu(gate) * up) @ outputs.T
    return made


def _project(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _norm(config: Mapping[str, Any], x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, config.get("rms_norm_eps", 1e-6))


def _attention(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], i: int, x: Tensor
) -> Tensor:
    """A sink is one more logit of the softmax, with value zero; it takes no scale and no mask."""
    name, heads, count = f"model.layers.{i}.self_attn", config["num_attention_heads"], len(x)
    dim = config.get("head_dim") or config["hidden_size"] // heads
    q, k, v = (
        _project(weights, f"{name}.{part}_proj", x).view(count, -1, dim).transpose(0, 1)
        for part in "qkv"
    )
    theta = _theta(config, i)
    if theta:
        q, k = _rotated(q, theta), _rotated(k, theta)
    k, v = (z.repeat_interleave(heads // k.shape[0], dim=0) for z in (k, v))
    distance = torch.arange(count)[:, None] - torch.arange(count)
    visible = distance >= 0
    if _is_windowed(config, i):
        visible &= distance < config.get("sliding_window", 128)
    scores = q @ k.mT * config.get("attention_multiplier", 1.0)
    scores = scores.masked_fill(~visible, -math.inf)
    sinks = weights[f"{name}.sinks"][:, None, None].expand(heads, count, 1)
    shares = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
    mixed = (shares @ v).transpose(0, 1).reshape(count, heads * dim)
    return _project(weights, f"{name}.o_proj", mixed)


def _theta(config: Mapping[str, Any], i: int) -> float:
    listed = config.get("layer_rope_theta")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    assert rope.get("rope_type", "default") == "default"
    shared = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    return float(shared if listed is None else listed[i])


def _is_windowed(config: Mapping[str, Any], i: int) -> bool:
    types = config.get("layer_types")
    return i % 4 != 0 if types is None else types[i] == "sliding_attention"


def _rotated(x: Tensor, theta: float) -> Tensor:
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * frequencies
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)
