"""The model in plain torch: scans token by token, keys and values of every head made anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

LATENT_EPS, LENGTH_EPS = 1e-6, 1e-6


def forward(config: Mapping[str, Any], weights: Mapping[str, Any], ids: Sequence[int]) -> Any:
    """Logits `[tokens, vocabulary]` of one prompt, in the precision of the weights."""
    x = weights["model.embed_tokens.weight"][torch.as_tensor(list(ids))]
    scanning = set(config["linear_attn_config"]["kda_layers"])
    for i in range(config["num_hidden_layers"]):
        name = f"model.layers.{i}"
        inner = _norm(x, weights[f"{name}.input_layernorm.weight"], config["rms_norm_eps"])
        mix = _scan if i + 1 in scanning else _attend
        x = x + mix(config, weights, f"{name}.self_attn.", inner)
        inner = _norm(x, weights[f"{name}.post_attention_layernorm.weight"], config["rms_norm_eps"])
        dense = i < config["first_k_dense_replace"] or i % config["moe_layer_freq"]
        x = x + (_mlp(weights, f"{name}.mlp.", inner) if dense
                 else _experts(config, weights, f"{name}.block_sparse_moe.", inner))  # fmt: skip
    x = _norm(x, weights["model.norm.weight"], config["rms_norm_eps"])
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return x @ weights[f"{head}.weight"].T


def _norm(x: Any, weight: Any, eps: float) -> Any:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _mlp(w: Mapping[str, Any], name: str, x: Any) -> Any:
    gate, up = (x @ w[f"{name}{p}_proj.weight"].T for p in ("gate", "up"))
    return (F.silu(gate) * up) @ w[f"{name}down_proj.weight"].T


def _scan(config: Mapping[str, Any], w: Mapping[str, Any], name: str, x: Any) -> Any:
    """The gated delta rule, a head and a token at a time."""
    heads = config["linear_attn_config"]["num_heads"]
    q, k, v = (_convolved(w, name + p, x).view(len(x), heads, -1) for p in "qkv")
    q, k = (z / torch.sqrt(z.square().sum(-1, keepdim=True) + LENGTH_EPS) for z in (q, k))
    q = q * q.shape[-1] ** -0.5
    f = x @ w[name + "f_a_proj.weight"].T @ w[name + "f_b_proj.weight"].T + w[name + "dt_bias"]
    rate = w[name + "A_log"].reshape(-1).exp()
    left = torch.exp(-rate[:, None] * F.softplus(f.view(q.shape)))
    learn = torch.sigmoid(x @ w[name + "b_proj.weight"].T)
    out = torch.zeros_like(v)
    for h in range(heads):
        memory = x.new_zeros(k.shape[-1], v.shape[-1])
        for t in range(len(x)):
            memory = left[t, h][:, None] * memory
            error = learn[t, h] * (v[t, h] - k[t, h] @ memory)
            memory = memory + torch.outer(k[t, h], error)
            out[t, h] = q[t, h] @ memory
    gate = x @ w[name + "g_a_proj.weight"].T @ w[name + "g_b_proj.weight"].T
    out = _norm(out, w[name + "o_norm.weight"], config["rms_norm_eps"])
    out = out.flatten(1) * torch.sigmoid(gate)
    return out @ w[name + "o_proj.weight"].T


def _convolved(w: Mapping[str, Any], name: str, x: Any) -> Any:
    """A projection, each column convolved with its own past, SiLU."""
    taps = w[name + "_conv1d.weight"]
    rows = F.pad(x @ w[name + "_proj.weight"].T, (0, 0, taps.shape[-1] - 1, 0))
    return F.silu(F.conv1d(rows.T[None], taps, groups=len(taps))[0].T)


def _attend(config: Mapping[str, Any], w: Mapping[str, Any], name: str, x: Any) -> Any:
    """Attention with the keys and values of all heads written out."""
    heads, rank = config["num_attention_heads"], config["kv_lora_rank"]
    nope = config["qk_nope_head_dim"]
    q = (x @ w[name + "q_proj.weight"].T).view(len(x), heads, -1)
    both = x @ w[name + "kv_a_proj_with_mqa.weight"].T
    latent = _norm(both[:, :rank], w[name + "kv_a_layernorm.weight"], LATENT_EPS)
    made = (latent @ w[name + "kv_b_proj.weight"].T).view(len(x), heads, -1)
    beside = both[:, None, rank:].expand(-1, heads, -1)
    keys, values = torch.cat([made[..., :nope], beside], -1), made[..., nope:]
    scores = torch.einsum("thd,shd->hts", q, keys) * keys.shape[-1] ** -0.5
    causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    mixed = torch.softmax(scores.masked_fill(~causal, -torch.inf), -1)
    out = torch.einsum("hts,shv->thv", mixed, values).flatten(1)
    return out @ w[name + "o_proj.weight"].T


def _experts(config: Mapping[str, Any], w: Mapping[str, Any], name: str, x: Any) -> Any:
    """Chosen by score and bias within the best groups, weighed by score alone, and the shared
    ones."""
    scores = torch.sigmoid(x @ w[name + "gate.weight"].T)
    choice = scores + w[name + "gate.e_score_correction_bias"]
    groups, kept = config["num_expert_group"], config["topk_group"]
    by_group = choice.view(len(x), groups, -1)
    best = by_group.topk(2, -1).values.sum(-1).topk(kept, -1).indices
    mask = torch.zeros(len(x), groups, dtype=torch.bool).scatter(1, best, True)
    choice = by_group.masked_fill(~mask[..., None], -torch.inf).flatten(1)
    ids = choice.topk(config["num_experts_per_token"], -1).indices
    weight = scores.gather(1, ids)
    if config["moe_renormalize"]:
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
    out = _mlp(w, name + "shared_experts.", x)
    for t in range(len(x)):
        for j, e in enumerate(ids[t].tolist()):
            one = f"{name}experts.{e}."
            inner = F.silu(w[one + "w1.weight"] @ x[t]) * (w[one + "w3.weight"] @ x[t])
            scaled = weight[t, j] * config["routed_scaling_factor"]
            out[t] = out[t] + scaled * (w[one + "w2.weight"] @ inner)
    return out
