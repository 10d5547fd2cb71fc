"""Owns the checkpoint names: a text model below one prefix, what is around it passed over."""

from __future__ import annotations

from collections.abc import Iterable

from kernelgen.archs.weight_rules import Shape, WeightRules
from kernelgen.spec.model import DeltaSpec, LatentSpec, ModelSpec, MoeSpec

_ROOT = "language_model."
_MODEL = f"{_ROOT}model"
_IN, _OUT = f"{_MODEL}.layers.{{layer}}", "layers.{layer}"
_MIXER, _ATTN = f"{_IN}.self_attn", f"{_OUT}.attn"
_MOE, _MLP = f"{_IN}.block_sparse_moe", f"{_OUT}.mlp"
_Pairs = tuple[tuple[str, str], ...]

_SKELETON = (
    (f"{_MODEL}.embed_tokens.weight", "embed.weight"),
    (f"{_IN}.input_layernorm.weight", f"{_OUT}.attn_norm.weight"),
    (f"{_IN}.post_attention_layernorm.weight", f"{_OUT}.mlp_norm.weight"),
    (f"{_MIXER}.o_proj.weight", f"{_ATTN}.o.weight"),
    (f"{_MODEL}.norm.weight", "head_norm.weight"),
    (f"{_ROOT}lm_head.weight", "head.weight"),
)
_DEPTH = (
    (f"{_IN}.self_attention_res", f"{_OUT}.attn_depth"),
    (f"{_IN}.mlp_res", f"{_OUT}.mlp_depth"),
    (f"{_MODEL}.output_attn_res", "head_depth"),
)
_DELTA = (
    *((f"{_MIXER}.{p}_proj.weight", f"{_ATTN}.{p}.weight") for p in "qkv"),
    *((f"{_MIXER}.{p}_conv1d.weight", f"{_ATTN}.{p}_conv.weight") for p in "qkv"),
    (f"{_MIXER}.f_a_proj.weight", f"{_ATTN}.decay_down.weight"),
    (f"{_MIXER}.f_b_proj.weight", f"{_ATTN}.decay_up.weight"),
    (f"{_MIXER}.b_proj.weight", f"{_ATTN}.beta.weight"),
    (f"{_MIXER}.A_log", f"{_ATTN}.rate"),
    (f"{_MIXER}.dt_bias", f"{_ATTN}.decay_bias"),
    (f"{_MIXER}.o_norm.weight", f"{_ATTN}.norm.weight"),
)
_GATE = ((f"{_MIXER}.g_proj.weight", f"{_ATTN}.gate.weight"),)
_NARROW_GATE = (
    (f"{_MIXER}.g_a_proj.weight", f"{_ATTN}.gate_down.weight"),
    (f"{_MIXER}.g_b_proj.weight", f"{_ATTN}.gate_up.weight"),
)
_LATENT = (
    (f"{_MIXER}.kv_a_proj_with_mqa.weight", f"{_ATTN}.kv.weight"),
    (f"{_MIXER}.kv_a_layernorm.weight", f"{_ATTN}.latent_norm.weight"),
)
_QUERY = ((f"{_MIXER}.q_proj.weight", f"{_ATTN}.q.weight"),)
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
_NARROW = (
    (f"{_MOE}.routed_expert_down_proj.weight", f"{_MLP}.latent_down.weight"),
    (f"{_MOE}.routed_expert_up_proj.weight", f"{_MLP}.latent_up.weight"),
)
_PLAIN = (
    r".+\.block_sparse_moe\.(?:gate|routed_expert_(?:down|up)_proj)",
    r".+_res_proj",
)
"""the published config's exceptions do not name them"""
_NARROW_NORM = ((f"{_MOE}.routed_expert_norm.weight", f"{_MLP}.latent_norm.weight"),)


def weight_rules(spec: ModelSpec) -> WeightRules:
    """Where each parameter is; names of parts that no layer has are left out."""
    kinds = spec.kinds()[0]
    mixers, feeds = [k.attention for k in kinds], [k.mlp for k in kinds]
    latents = [m for m in mixers if isinstance(m, LatentSpec)]
    deltas = [m for m in mixers if isinstance(m, DeltaSpec)]
    depths = _DEPTH if spec.closed_blocks is not None else ()
    parts: Iterable[tuple[bool, _Pairs]] = (
        (True, _SKELETON),
        (bool(depths), tuple(pair for name, ours in depths for pair in _mixture(name, ours))),
        (bool(deltas), _DELTA),
        (any(m.gate_rank for m in deltas), _NARROW_GATE),
        (any(m.gate_rank is None for m in deltas) or any(m.gate for m in latents), _GATE),
        (bool(latents), _LATENT),
        (any(m.query_rank for m in latents), _QUERY_LATENT),
        (any(m.query_rank is None for m in latents) and not deltas, _QUERY),
        *_feed_parts([f for f in feeds if isinstance(f, MoeSpec)], len(feeds)),
    )
    return WeightRules(
        pairs=tuple(pair for wanted, pairs in parts if wanted for pair in pairs),
        ignored=_passed_over(spec),
        packed=(_KEYS_AND_VALUES,) if latents else (),
        stored=(*((f"{_MIXER}.{p}_conv1d.weight", _column) for p in "qkv"),
                *((f"{name}_proj.weight", _row) for name, _ in depths),
                (f"{_MIXER}.A_log", _padded), (_KEYS_AND_VALUES[0], _flat)),
        plain=_PLAIN,
    )  # fmt: skip


def _feed_parts(routed: list[MoeSpec], kinds: int) -> tuple[tuple[bool, _Pairs], ...]:
    return (
        (len(routed) < kinds, _dense(f"{_IN}.mlp", _MLP)),
        (bool(routed), _ROUTED),
        (any(f.latent for f in routed), _NARROW),
        (any(f.latent_eps is not None for f in routed), _NARROW_NORM),
        (any(f.shared for f in routed), _dense(f"{_MOE}.shared_experts", f"{_MLP}.shared")),
    )


def _passed_over(spec: ModelSpec) -> tuple[str, ...]:
    """What is around the text model, draft blocks behind its layers, and what the first layer,
    whose only source is the embedding, has of a mixture."""
    names = [r"(vision_tower|mm_projector)\..+"]
    first = len(spec.layers)
    for draft in range(first, first + spec.skipped_layers):
        names.append(rf"language_model\.model\.layers\.{draft}\..+")
    if spec.closed_blocks is not None:
        names.append(r"language_model\.model\.layers\.0\.self_attention_res_(norm|proj)\.weight")
    if spec.tied_head:
        names.append(r"language_model\.lm_head\.weight")
    return tuple(names)


def _mixture(name: str, parameter: str) -> _Pairs:
    """The two vectors whose product scores a source of depth."""
    return (
        (f"{name}_norm.weight", f"{parameter}.norm.weight"),
        (f"{name}_proj.weight", f"{parameter}.probe.weight"),
    )


def _dense(name: str, parameter: str) -> _Pairs:
    """A gated MLP."""
    return tuple(
        (f"{name}.{p}_proj.weight", f"{parameter}.{p}.weight") for p in ("gate", "up", "down")
    )


def _column(taps: Shape) -> Shape:
    """`[P, 1, W]`, as the framework's convolution has it."""
    return (taps[0], 1, taps[1])


def _row(probe: Shape) -> Shape:
    """`[1, D]`: the matrix of a projection to one number."""
    return (1, *probe)


def _padded(rates: Shape) -> Shape:
    """The next power of two above the heads: what follows the heads' own entries is never used."""
    return (1 << rates[0].bit_length(),)


def _flat(matrices: Shape) -> Shape:
    """The matrices of all heads in one."""
    return (matrices[0] * matrices[1], matrices[2])
