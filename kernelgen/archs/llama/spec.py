"""Owns reading a config: defaults are those of the reference class where a key is absent."""

from __future__ import annotations

from kernelgen.spec.config import ConfigFile
from kernelgen.spec.decoder_fields import (
    ACTIVATIONS,
    read_bos_id,
    read_eos_ids,
    read_eps,
    read_sizes,
    read_stored_dtype,
)
from kernelgen.spec.fields import Fields
from kernelgen.spec.model import Activation, AttentionSpec, LayerSpec, MlpSpec, ModelSpec
from kernelgen.spec.rope_fields import read_rope
from kernelgen.spec.unread import refuse_unread


def read_spec(config: ConfigFile) -> ModelSpec:
    """The model that a config describes; all its problems at once."""
    fields = Fields.of(config)
    sizes = read_sizes(fields, max_positions=2048)
    bias = fields.flag("attention_bias", False)
    eps = read_eps(fields, 1e-6)
    attention = AttentionSpec(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        scale=sizes.head_dim**-0.5,
        rope=read_rope(fields, sizes.head_dim, sizes.max_positions),
        qkv_bias=bias,
        out_bias=bias,
    )
    mlp = MlpSpec(
        intermediate=sizes.intermediate,
        activation=fields.choice("hidden_act", ACTIVATIONS, Activation.SILU),
        bias=fields.flag("mlp_bias", False),
    )
    spec = ModelSpec(
        architecture="llama",
        layers=(LayerSpec(attention, mlp, eps),) * sizes.layers,
        hidden=sizes.hidden,
        vocab=sizes.vocab,
        max_positions=sizes.max_positions,
        norm_eps=eps,
        tied_head=fields.flag("tie_word_embeddings", False),
        stored=read_stored_dtype(fields),
        bos_id=read_bos_id(fields, sizes.vocab, 1),
        eos_ids=read_eos_ids(fields, sizes.vocab, 2),
    )
    refuse_unread(fields)
    fields.finish()
    return spec
