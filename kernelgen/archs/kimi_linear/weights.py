"""Owns the checkpoint names: scans and latents below one prefix, experts matrix by matrix."""

from __future__ import annotations

from kernelgen.archs.weight_rules import Shape, WeightRules
from kernelgen.spec.model import LatentSpec, ModelSpec, MoeSpec

_IN, _OUT = "model.layers.{layer}", "layers.{layer}"
_MIXER, _ATTN = f"{_IN}.self_attn", f"{_OUT}.attn"
_MOE, _MLP = f"{_IN}.block_sparse_moe", f"{_OUT}.mlp"

_SKELETON = (
    ("model.embed_tokens.weight", "embed.weight"),
    (f"{_IN}.input_layernorm.weight", f"{_OUT}.attn_norm.weight"),
    (f"{_IN}.post_attention_layernorm.weight", f"{_OUT}.mlp_norm.weight"),
    (f"{_MIXER}.q_proj.weight", f"{_ATTN}.q.weight"),
    (f"{_MIXER}.o_proj.weight", f"{_ATTN}.o.weight"),
    ("model.norm.weight", "head_norm.weight"),
    ("lm_head.weight", "head.weight"),
)
_DELTA = (
    (f"{_MIXER}.k_proj.weight", f"{_ATTN}.k.weight"),
    (f"{_MIXER}.v_proj.weight", f"{_ATTN}.v.weight"),
    *((f"{_MIXER}.{p}_conv1d.weight", f"{_ATTN}.{p}_conv.weight") for p in "qkv"),
    (f"{_MIXER}.f_a_proj.weight", f"{_ATTN}.decay_down.weight"),
    (f"{_MIXER}.f_b_proj.weight", f"{_ATTN}.decay_up.weight"),
    (f"{_MIXER}.b_proj.weight", f"{_ATTN}.beta.weight"),
    (f"{_MIXER}.A_log", f"{_ATTN}.rate"),
    (f"{_MIXER}.dt_bias", f"{_ATTN}.decay_bias"),
    (f"{_MIXER}.g_a_proj.weight", f"{_ATTN}.gate_down.weight"),
    (f"{_MIXER}.g_b_proj.weight", f"{_ATTN}.gate_up.weight"),
    (f"{_MIXER}.o_norm.weight", f"{_ATTN}.norm.weight"),
)
_LATENT = (
    (f"{_MIXER}.kv_a_proj_with_mqa.weight", f"{_ATTN}.kv.weight"),
    (f"{_MIXER}.kv_a_layernorm.weight", f"{_ATTN}.latent_norm.weight"),
)
_QUERY_LATENT = (
    (f"{_MIXER}.q_a_proj.weight", f"{_ATTN}.q_down.weight"),
    (f"{_MIXER}.q_a_layernorm.weight", f"{_ATTN}.q_norm.weight"),
    (f"{_MIXER}.q_b_proj.weight", f"{_ATTN}.q_up.weight"),
)
_KEYS_AND_VALUES = (
    f"{_MIXER}.kv_b_proj.weight",
    (f"{_ATTN}.key_up.weight", f"{_ATTN}.value_up.weight"),
)
_ROUTED = (
    (f"{_MOE}.gate.weight", f"{_MLP}.router.weight"),
    (f"{_MOE}.gate.e_score_correction_bias", f"{_MLP}.router.bias"),
    (f"{_MOE}.experts.{{expert}}.w1.weight", f"{_MLP}.experts.gate.weight"),
    (f"{_MOE}.experts.{{expert}}.w3.weight", f"{_MLP}.experts.up.weight"),
    (f"{_MOE}.experts.{{expert}}.w2.weight", f"{_MLP}.experts.down.weight"),
)


def weight_rules(spec: ModelSpec) -> WeightRules:
    """Where each parameter is; names of parts that no layer has are left out."""
    kinds = spec.kinds()[0]
    mixers, feeds = [k.attention for k in kinds], [k.mlp for k in kinds]
    latents = [m for m in mixers if isinstance(m, LatentSpec)]
    routed = [f for f in feeds if isinstance(f, MoeSpec)]
    pairs = list(_SKELETON)
    if len(latents) < len(mixers):
        pairs += _DELTA
    if latents:
        pairs += _LATENT
    if any(m.query_rank for m in latents):
        pairs += _QUERY_LATENT
    if len(routed) < len(feeds):
        pairs += _dense(f"{_IN}.mlp", _MLP)
    if routed:
        pairs += _ROUTED
    if any(f.shared for f in routed):
        pairs += _dense(f"{_MOE}.shared_experts", f"{_MLP}.shared")
    return WeightRules(
        pairs=tuple(pairs),
        ignored=(r"lm_head\.weight",) if spec.tied_head else (),
        packed=(_KEYS_AND_VALUES,) if latents else (),
        stored=(*((f"{_MIXER}.{p}_conv1d.weight", _column) for p in "qkv"),
                (f"{_MIXER}.A_log", _head_axis), (_KEYS_AND_VALUES[0], _flat)),
    )  # fmt: skip


def _dense(name: str, parameter: str) -> tuple[tuple[str, str], ...]:
    """A gated MLP."""
    return tuple(
        (f"{name}.{p}_proj.weight", f"{parameter}.{p}.weight") for p in ("gate", "up", "down")
    )


def _column(taps: Shape) -> Shape:
    """`[P, 1, W]`, as the framework's convolution has it."""
    return (taps[0], 1, taps[1])


def _head_axis(rates: Shape) -> Shape:
    """`[1, 1, H, 1]`."""
    return (1, 1, rates[0], 1)


def _flat(matrices: Shape) -> Shape:
    """The matrices of all heads in one."""
    return (matrices[0] * matrices[1], matrices[2])
