"""Owns reading a config: which layers scan and which attend, latents, experts by layer."""

from __future__ import annotations

from kernelgen.archs.kimi_linear.layers import read_mixers
from kernelgen.core.errors import quote
from kernelgen.spec.config import ConfigFile
from kernelgen.spec.decoder_fields import (
    read_bos_id,
    read_eos_ids,
    read_eps,
    read_stored_dtype,
)
from kernelgen.spec.expert_fields import read_router
from kernelgen.spec.experts import RouterSpec, Scoring
from kernelgen.spec.fields import Fields
from kernelgen.spec.model import Activation, LayerSpec, MlpSpec, ModelSpec, MoeSpec
from kernelgen.spec.unread import refuse_unread

_WIDEST, _MOST_LAYERS, _MOST_POSITIONS = 1 << 20, 512, 1 << 22
_PUBLISHED_POSITIONS = 1 << 20
_DEAD = ("head_dim", "rope_theta", "rope_scaling", "moe_router_bias", "qk_head_dim", "layer_types")
"""keys of published files that change nothing: positions are not encoded, lists say which layer is
what"""


def read_spec(config: ConfigFile) -> ModelSpec:
    """The model that a config describes; all its problems at once."""
    fields = Fields.of(config)
    layers = fields.integer("num_hidden_layers", 1, _MOST_LAYERS)
    vocab = fields.integer("vocab_size", 1, 1 << 22)
    hidden = fields.integer("hidden_size", 1, 1 << 16)
    eps = read_eps(fields, 1e-5)
    feeds = _feeds(fields, layers)
    spec = ModelSpec(
        architecture="kimi_linear",
        layers=tuple(
            LayerSpec(mixer, feed, eps)
            for mixer, feed in zip(read_mixers(fields, layers), feeds, strict=True)
        ),
        hidden=hidden,
        vocab=vocab,
        max_positions=_positions(fields),
        norm_eps=eps,
        tied_head=fields.flag("tie_word_embeddings", False),
        stored=read_stored_dtype(fields),
        bos_id=read_bos_id(fields, vocab, None),
        eos_ids=read_eos_ids(fields, vocab, None),
    )
    drafts = fields.integer("num_nextn_predict_layers", 0, 1 << 10, 0, nullable=True)
    if drafts:
        fields.refuse("num_nextn_predict_layers", f"is {drafts}: draft blocks are not read", "0")
    for name in _DEAD:
        fields.raw(name)
    refuse_unread(fields)
    fields.finish()
    return spec


def _positions(fields: Fields) -> int:
    """Either spelling of the longest sequence; both where they agree."""
    old, new = "model_max_length", "max_position_embeddings"
    first = fields.integer(old, 1, _MOST_POSITIONS, _PUBLISHED_POSITIONS)
    second = fields.integer(new, 1, _MOST_POSITIONS, first)
    if fields.absent(old):
        return second
    if fields.sound(old, new):
        fields.require(first == second, new, f"is {second}, {old} is {first}", "one value")
    return first


def _feeds(fields: Fields, layers: int) -> list[MlpSpec | MoeSpec]:
    """A dense MLP in the first layers and between the others, experts in the rest."""
    activation = fields.choice("hidden_act", {"silu": Activation.SILU}, Activation.SILU)
    dense = MlpSpec(fields.integer("intermediate_size", 1, _WIDEST), activation)
    first = fields.integer("first_k_dense_replace", 0, _MOST_LAYERS, 1)
    every = fields.integer("moe_layer_freq", 1, _MOST_LAYERS, 1)
    routed = [i >= first and i % every == 0 for i in range(layers)]
    experts = _experts(fields, activation)
    return [experts if is_routed else dense for is_routed in routed]


def _experts(fields: Fields, activation: Activation) -> MoeSpec:
    inner = fields.integer("moe_intermediate_size", 1, _WIDEST, 1024)
    shared = fields.integer("num_shared_experts", 0, 64, 1, nullable=True)
    return MoeSpec(
        router=_router(fields),
        expert=MlpSpec(inner, activation),
        shared=MlpSpec(shared * inner, activation) if shared else None,
    )


def _router(fields: Fields) -> RouterSpec:
    """Scores are biased for the choice alone; groups count where fewer are kept than there are."""
    plain = read_router(fields, "num_experts", "num_experts_per_token", experts=256, top_k=8)
    scorings = {s.value: s for s in (Scoring.SIGMOID, Scoring.SOFTMAX)}
    scoring = fields.choice("moe_router_activation_func", scorings, Scoring.SIGMOID)
    method = fields.raw("topk_method")
    if method not in (None, "noaux_tc"):
        fields.refuse("topk_method", f"is {quote(method)}", "noaux_tc")
    groups = fields.integer("num_expert_group", 1, plain.experts, 1, nullable=True)
    kept = fields.integer("topk_group", 1, plain.experts, 1, nullable=True)
    if not fields.flag("use_grouped_topk", True) or kept >= groups:
        groups = kept = 1
    each = plain.experts // groups
    fits = plain.experts % groups == 0 and plain.top_k <= kept * each and each >= min(2, groups)
    if fields.sound("num_experts", "num_experts_per_token", "num_expert_group", "topk_group"):
        allowed = f"groups of {plain.experts} experts that hold {plain.top_k} where kept"
        fields.require(fits, "num_expert_group", f"is {groups}, of which {kept} are kept", allowed)
    return RouterSpec(
        experts=plain.experts,
        top_k=plain.top_k,
        scoring=scoring,
        bias=True,
        groups=groups if fits else 1,
        kept_groups=kept if fits else 1,
        group_top=2 if fits and groups > 1 else 1,
        renormalise=fields.flag("moe_renormalize", True),
        scale=fields.number("routed_scaling_factor", 1e-6, 1e6, 1.0),
    )
