"""Owns the checkpoint names that most decoder-only models share."""

from __future__ import annotations

from kernelgen.archs.weight_rules import WeightRules
from kernelgen.spec.model import MlpSpec, ModelSpec

_LAYER = "model.layers.{layer}"
_MLP = "layers.{layer}.mlp."

DECODER_PAIRS = (
    ("model.embed_tokens.weight", "embed.weight"),
    (f"{_LAYER}.input_layernorm.weight", "layers.{layer}.attn_norm.weight"),
    (f"{_LAYER}.self_attn.q_proj.{{part}}", "layers.{layer}.attn.q.{part}"),
    (f"{_LAYER}.self_attn.k_proj.{{part}}", "layers.{layer}.attn.k.{part}"),
    (f"{_LAYER}.self_attn.v_proj.{{part}}", "layers.{layer}.attn.v.{part}"),
    (f"{_LAYER}.self_attn.o_proj.{{part}}", "layers.{layer}.attn.o.{part}"),
    (f"{_LAYER}.post_attention_layernorm.weight", "layers.{layer}.mlp_norm.weight"),
    (f"{_LAYER}.mlp.gate_proj.{{part}}", "layers.{layer}.mlp.gate.{part}"),
    (f"{_LAYER}.mlp.up_proj.{{part}}", "layers.{layer}.mlp.up.{part}"),
    (f"{_LAYER}.mlp.down_proj.{{part}}", "layers.{layer}.mlp.down.{part}"),
    ("model.norm.weight", "head_norm.weight"),
    ("lm_head.weight", "head.weight"),
)
"""(checkpoint name, parameter name) of a pre-norm decoder with gated MLPs"""

_STORED_FREQUENCIES = (
    r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    r"model\.rotary_emb\.inv_freq",
)


def decoder_rules(
    spec: ModelSpec,
    *further: tuple[str, str],
    packed: tuple[tuple[str, tuple[str, ...]], ...] = (),
) -> WeightRules:
    """The shared names and `further` pairs; a tied model's copy of its head is passed over.

    Names of the gated MLP are left out where no layer has one.
    """
    tied = (r"lm_head\.weight",) if spec.tied_head else ()
    dense = any(isinstance(layer.mlp, MlpSpec) for layer in spec.kinds()[0])
    pairs = tuple(p for p in DECODER_PAIRS if dense or not p[1].startswith(_MLP))
    return WeightRules((*pairs, *further), (*_STORED_FREQUENCIES, *tied), packed)
