"""Owns the plain model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def forward(config: Mapping[str, Any], weights: Mapping[str, Tensor], ids: Sequence[int]) -> Tensor:
    """Logits `[tokens, vocabulary]` of one prompt, in the dtype of the weights."""
    x = weights["tokens.table"][torch.tensor(list(ids), dtype=torch.int64)]
    for i in range(config["num_hidden_layers"]):
        w = {k.rpartition(".")[2]: v for k, v in weights.items() if k.startswith(f"blocks.{i}.")}
        y = F.rms_norm(x, x.shape[-1:], w["scale"], 1e-5)
        fed = (F.relu(y @ w["gate"].T) ** 2 * (y @ w["up"].T)) @ w["down"].T
        x = x + fed + _mixed(config, w, y, rotated=i % config["rotate_every"] == 0)
    return F.rms_norm(x, x.shape[-1:], weights["final.scale"], 1e-5) @ weights["tokens.table"].T


def _mixed(
    config: Mapping[str, Any], w: Mapping[str, Tensor], y: Tensor, *, rotated: bool
) -> Tensor:
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    count, half = len(y), config["hidden_size"] // heads // 2
    q, k, v = (
        (y @ w[n].T).view(count, -1, 2 * half).transpose(0, 1) for n in ("query", "key", "value")
    )
    if rotated:
        steps = config["base"] ** (-torch.arange(half, dtype=y.dtype) / half)
        turn = torch.polar(torch.ones_like(steps), torch.arange(count)[:, None] * steps)
        q, k = (_turned(z, turn) for z in (q, k))
    k, v = (z.repeat_interleave(heads // groups, dim=0) for z in (k, v))
    out = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    return out.transpose(0, 1).reshape(count, -1) @ w["out"].T


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    z = torch.complex(*x.chunk(2, dim=-1)) * turn
    return torch.cat([z.real, z.imag], dim=-1)
