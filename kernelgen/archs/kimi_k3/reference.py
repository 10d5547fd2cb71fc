"""The model in plain torch: scans token by token, sums of blocks in a list, experts one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

LATENT_EPS, LENGTH_EPS, ROOT = 1e-6, 1e-6, "language_model.model."
_Config = Mapping[str, Any]
_Weights = Mapping[str, Any]


def forward(config: _Config, weights: _Weights, ids: Sequence[int]) -> Any:
    """Logits `[tokens, vocabulary]` of one prompt, in the precision of the weights."""
    c = config["text_config"]
    x = weights[f"{ROOT}embed_tokens.weight"][torch.as_tensor(list(ids))]
    closed: list[Any] = []
    scanning = set(c["linear_attn_config"]["kda_layers"])
    for i in range(c["num_hidden_layers"]):
        name = f"{ROOT}layers.{i}"
        read = _mixed(c, weights, f"{name}.self_attention_res", [*closed, x]) if closed else x
        read = _norm(read, weights[f"{name}.input_layernorm.weight"], c["rms_norm_eps"])
        made = (_scan if i + 1 in scanning else _attend)(c, weights, f"{name}.self_attn.", read)
        if i % c["attn_res_block_size"] == 0:
            closed, x = [*closed, x], made
        else:
            x = x + made
        read = _mixed(c, weights, f"{name}.mlp_res", [*closed, x])
        read = _norm(read, weights[f"{name}.post_attention_layernorm.weight"], c["rms_norm_eps"])
        dense = i < c["first_k_dense_replace"] or i % c["moe_layer_freq"]
        x = x + (_mlp(c, weights, f"{name}.mlp.", read) if dense
                 else _experts(c, weights, f"{name}.block_sparse_moe.", read))  # fmt: skip
    x = _mixed(c, weights, f"{ROOT}output_attn_res", [*closed, x])
    x = _norm(x, weights[f"{ROOT}norm.weight"], c["rms_norm_eps"])
    return x @ weights["language_model.lm_head.weight"].T


def _norm(x: Any, weight: Any, eps: float) -> Any:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _mixed(c: _Config, w: _Weights, name: str, sources: list[Any]) -> Any:
    """A softmax over depth, the open block last."""
    rows = torch.stack(sources, 1)
    normed = _norm(rows, w[f"{name}_norm.weight"], c["rms_norm_eps"])
    weight = torch.softmax(normed @ w[f"{name}_proj.weight"].view(-1), -1)
    return torch.einsum("ts,tsd->td", weight, rows)


def _activated(c: _Config, gate: Any, up: Any) -> Any:
    """Gate and up, both bounded."""
    b, g = c["activation_situ_beta"], c["activation_situ_linear_beta"]
    return b * torch.tanh(gate / b) * torch.sigmoid(gate) * g * torch.tanh(up / g)


def _mlp(c: _Config, w: _Weights, name: str, x: Any) -> Any:
    gate, up = (x @ w[f"{name}{p}_proj.weight"].T for p in ("gate", "up"))
    return _activated(c, gate, up) @ w[f"{name}down_proj.weight"].T


def _scan(c: _Config, w: _Weights, name: str, x: Any) -> Any:
    """The gated delta rule with a bounded decay, a head and a token at a time."""
    lin = c["linear_attn_config"]
    heads = lin["num_heads"]
    q, k, v = (_convolved(w, name + p, x).view(len(x), heads, -1) for p in "qkv")
    q, k = (z / torch.sqrt(z.square().sum(-1, keepdim=True) + LENGTH_EPS) for z in (q, k))
    q = q * q.shape[-1] ** -0.5
    f = x @ w[name + "f_a_proj.weight"].T @ w[name + "f_b_proj.weight"].T + w[name + "dt_bias"]
    rate = w[name + "A_log"][:heads].exp()
    left = torch.exp(lin["gate_lower_bound"] * torch.sigmoid(rate[:, None] * f.view(q.shape)))
    learn = torch.sigmoid(x @ w[name + "b_proj.weight"].T)
    out = torch.zeros_like(v)
    for h in range(heads):
        memory = x.new_zeros(k.shape[-1], v.shape[-1])
        for t in range(len(x)):
            memory = left[t, h][:, None] * memory
            error = learn[t, h] * (v[t, h] - k[t, h] @ memory)
            memory = memory + torch.outer(k[t, h], error)
            out[t, h] = q[t, h] @ memory
    out = _norm(out, w[name + "o_norm.weight"], c["rms_norm_eps"]).flatten(1)
    out = out * torch.sigmoid(x @ w[name + "g_proj.weight"].T)
    return out @ w[name + "o_proj.weight"].T


def _convolved(w: _Weights, name: str, x: Any) -> Any:
    """A projection, each column convolved with its own past, SiLU."""
    taps = w[name + "_conv1d.weight"]
    rows = F.pad(x @ w[name + "_proj.weight"].T, (0, 0, taps.shape[-1] - 1, 0))
    return F.silu(F.conv1d(rows.T[None], taps, groups=len(taps))[0].T)


def _attend(c: _Config, w: _Weights, name: str, x: Any) -> Any:
    """Attention with the keys and values of all heads written out, gated."""
    heads, rank, nope = c["num_attention_heads"], c["kv_lora_rank"], c["qk_nope_head_dim"]
    down = x @ w[name + "q_a_proj.weight"].T
    down = _norm(down, w[name + "q_a_layernorm.weight"], LATENT_EPS)
    q = (down @ w[name + "q_b_proj.weight"].T).view(len(x), heads, -1)
    both = x @ w[name + "kv_a_proj_with_mqa.weight"].T
    latent = _norm(both[:, :rank], w[name + "kv_a_layernorm.weight"], LATENT_EPS)
    made = (latent @ w[name + "kv_b_proj.weight"].T).view(len(x), heads, -1)
    beside = both[:, None, rank:].expand(-1, heads, -1)
    keys, values = torch.cat([made[..., :nope], beside], -1), made[..., nope:]
    scores = torch.einsum("thd,shd->hts", q, keys) * keys.shape[-1] ** -0.5
    causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    weight = torch.softmax(scores.masked_fill(~causal, -torch.inf), -1)
    out = torch.einsum("hts,shv->thv", weight, values).flatten(1)
    out = out * torch.sigmoid(x @ w[name + "g_proj.weight"].T)
    return out @ w[name + "o_proj.weight"].T


def _experts(c: _Config, w: _Weights, name: str, x: Any) -> Any:
    """Chosen by score and bias, weighed by score alone, summed and normed where they are narrow."""
    scores = torch.sigmoid(x @ w[name + "gate.weight"].T)
    choice = scores + w[name + "gate.e_score_correction_bias"]
    ids = choice.topk(c["num_experts_per_token"], -1).indices
    weight = scores.gather(1, ids)
    weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]
    narrow = x @ w[name + "routed_expert_down_proj.weight"].T
    total = torch.zeros_like(narrow)
    for t in range(len(x)):
        for j, e in enumerate(ids[t].tolist()):
            one = f"{name}experts.{e}."
            gate, up = (w[f"{one}{p}.weight"] @ narrow[t] for p in ("w1", "w3"))
            total[t] += weight[t, j] * (w[one + "w2.weight"] @ _activated(c, gate, up))
    total = _norm(total, w[name + "routed_expert_norm.weight"], c["rms_norm_eps"])
    wide = total @ w[name + "routed_expert_up_proj.weight"].T
    return wide + _mlp(c, w, name + "shared_experts.", x)
