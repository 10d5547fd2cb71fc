"""Owns what follows a mixer: a dense MLP in the first layers, narrow experts in the others."""

from __future__ import annotations

from kernelgen.core.errors import quote
from kernelgen.spec.expert_fields import read_router
from kernelgen.spec.experts import RouterSpec, Scoring
from kernelgen.spec.fields import Fields
from kernelgen.spec.model import Activation, MlpSpec, MoeSpec

_WIDEST, _MOST_LAYERS = 1 << 20, 512


def read_feeds(fields: Fields, layers: int, eps: float) -> list[MlpSpec | MoeSpec]:
    """One for each layer; `eps` is that of the norm behind narrow experts."""
    capped = fields.choice("hidden_act", {"silu": False, "situ": True}, False)
    gate_cap, up_cap = _caps(fields) if capped else (None, None)

    def mlp(width: int) -> MlpSpec:
        return MlpSpec(width, Activation.SILU, gate_cap=gate_cap, up_cap=up_cap)

    dense = mlp(fields.integer("intermediate_size", 1, _WIDEST))
    first = fields.integer("first_k_dense_replace", 0, _MOST_LAYERS, 1)
    every = fields.integer("moe_layer_freq", 1, _MOST_LAYERS, 1)
    inner = fields.integer("moe_intermediate_size", 1, _WIDEST)
    shared = fields.integer("num_shared_experts", 0, 64, 0, nullable=True)
    latent = _latent(fields)
    normed = fields.flag("latent_moe_use_norm", False)
    experts = MoeSpec(
        router=_router(fields),
        expert=mlp(inner),
        latent=latent,
        latent_eps=eps if normed and latent else None,
        shared=mlp(shared * inner) if shared else None,
    )
    return [experts if i >= first and i % every == 0 else dense for i in range(layers)]


def _caps(fields: Fields) -> tuple[float, float | None]:
    """Of the gate's factor (1 where none is given), and of what it is multiplied with."""
    gate = fields.number("activation_situ_beta", 1e-3, 1e6, 1.0, nullable=True)
    if "activation_situ_linear_beta" in fields:
        return gate, fields.number("activation_situ_linear_beta", 1e-3, 1e6)
    fields.raw("activation_situ_linear_beta")
    return gate, None


def _latent(fields: Fields) -> int | None:
    name = "routed_expert_hidden_size"
    if name not in fields:
        fields.raw(name)
        return None
    return fields.integer(name, 1, 1 << 16)


def _router(fields: Fields) -> RouterSpec:
    """Scores are biased for the choice alone; groups count where fewer are kept than there are."""
    plain = read_router(fields, "num_experts", "num_experts_per_token", experts=1, top_k=1)
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
