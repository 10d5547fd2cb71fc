"""Owns reading a config: per-layer window and rotary base, four multipliers, sinks everywhere."""

from __future__ import annotations

from kernelgen.spec.config import ConfigFile
from kernelgen.spec.decoder_fields import (
    read_bos_id,
    read_eos_ids,
    read_eps,
    read_sizes,
    read_stored_dtype,
)
from kernelgen.spec.fields import Fields
from kernelgen.spec.mixed_attention_fields import read_mixed_attention, read_multiplier
from kernelgen.spec.model import Activation, LayerSpec, MlpSpec, ModelSpec
from kernelgen.spec.unread import refuse_unread


def read_spec(config: ConfigFile) -> ModelSpec:
    """The model that a config describes; all its problems at once."""
    fields = Fields.of(config)
    sizes = read_sizes(fields, max_positions=8192, kv_heads=4)
    eps = read_eps(fields, 1e-5)
    residual = read_multiplier(fields, "residual_multiplier")
    mlp = MlpSpec(
        intermediate=sizes.intermediate,
        activation=fields.choice("hidden_act", {"silu": Activation.SILU}, Activation.SILU),
        bias=fields.flag("mlp_bias", False),
    )
    attentions = read_mixed_attention(fields, sizes, window=128, every=4)
    spec = ModelSpec(
        architecture="granite_swa",
        layers=tuple(LayerSpec(a, mlp, eps, residual) for a in attentions),
        hidden=sizes.hidden,
        vocab=sizes.vocab,
        max_positions=sizes.max_positions,
        norm_eps=eps,
        tied_head=fields.flag("tie_word_embeddings", True),
        stored=read_stored_dtype(fields),
        embedding_multiplier=read_multiplier(fields, "embedding_multiplier"),
        logits_scaling=read_multiplier(fields, "logits_scaling"),
        bos_id=read_bos_id(fields, sizes.vocab, 100257),
        eos_ids=read_eos_ids(fields, sizes.vocab, 100257),
    )
    refuse_unread(fields)
    fields.finish()
    return spec
