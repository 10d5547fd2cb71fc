"""Owns reading a config: routed experts and a shared one, windows, rotary bases, multipliers."""

from __future__ import annotations

from kernelgen.spec.config import ConfigFile
from kernelgen.spec.decoder_fields import (
    DecoderSizes,
    read_bos_id,
    read_eos_ids,
    read_eps,
    read_sizes,
    read_stored_dtype,
)
from kernelgen.spec.expert_fields import read_router
from kernelgen.spec.fields import Fields
from kernelgen.spec.mixed_attention_fields import read_mixed_attention, read_multiplier
from kernelgen.spec.model import Activation, LayerSpec, MlpSpec, ModelSpec, MoeSpec
from kernelgen.spec.unread import refuse_unread

_WIDEST = 1 << 20


def read_spec(config: ConfigFile) -> ModelSpec:
    """The model that a config describes; all its problems at once."""
    fields = Fields.of(config)
    sizes = read_sizes(fields, max_positions=2048)
    eps = read_eps(fields, 1e-6)
    residual = read_multiplier(fields, "residual_multiplier")
    experts = _experts(fields, sizes)
    attentions = read_mixed_attention(fields, sizes, window=128, every=4)
    spec = ModelSpec(
        architecture="granitemoe_swa",
        layers=tuple(LayerSpec(a, experts, eps, residual) for a in attentions),
        hidden=sizes.hidden,
        vocab=sizes.vocab,
        max_positions=sizes.max_positions,
        norm_eps=eps,
        tied_head=fields.flag("tie_word_embeddings", False),
        stored=read_stored_dtype(fields),
        embedding_multiplier=read_multiplier(fields, "embedding_multiplier"),
        logits_scaling=read_multiplier(fields, "logits_scaling"),
        bos_id=read_bos_id(fields, sizes.vocab, 1),
        eos_ids=read_eos_ids(fields, sizes.vocab, 2),
    )
    refuse_unread(fields)
    fields.finish()
    return spec


def _experts(fields: Fields, sizes: DecoderSizes) -> MoeSpec:
    """The same experts in every layer; `shared_intermediate_size` 0: none that all share."""
    activation = fields.choice("hidden_act", {"silu": Activation.SILU}, Activation.SILU)
    router = read_router(fields, "num_local_experts", "num_experts_per_tok", experts=8, top_k=2)
    shared = fields.integer("shared_intermediate_size", 0, _WIDEST, 0)
    return MoeSpec(
        router=router,
        expert=MlpSpec(sizes.intermediate, activation),
        shared=MlpSpec(shared, activation) if shared else None,
    )
