"""Owns reading a config: per-layer window and rotary base, four multipliers, sinks everywhere."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.spec.config import ConfigFile
from kernelgen.spec.decoder_fields import (
    DecoderSizes,
    read_bos_id,
    read_eos_ids,
    read_eps,
    read_sizes,
    read_stored_dtype,
)
from kernelgen.spec.fields import Fields
from kernelgen.spec.layer_fields import WINDOW, read_layer_numbers, read_layer_windows
from kernelgen.spec.model import Activation, AttentionSpec, LayerSpec, MlpSpec, ModelSpec
from kernelgen.spec.rope import RopeSpec
from kernelgen.spec.rope_fields import read_rope, theta_fits
from kernelgen.spec.unread import refuse_unread

_SMALLEST, _LARGEST = 1e-6, 1e6  # of a multiplier


def read_spec(config: ConfigFile) -> ModelSpec:
    """The model that a config describes; all its problems at once."""
    fields = Fields.of(config)
    sizes = read_sizes(fields, max_positions=8192, kv_heads=4)
    eps = read_eps(fields, 1e-5)
    residual = _multiplier(fields, "residual_multiplier")
    mlp = MlpSpec(
        intermediate=sizes.intermediate,
        activation=fields.choice("hidden_act", {"silu": Activation.SILU}, Activation.SILU),
        bias=fields.flag("mlp_bias", False),
    )
    layers = tuple(LayerSpec(a, mlp, eps, residual) for a in _attentions(fields, sizes))
    spec = ModelSpec(
        architecture="granite_swa",
        layers=layers,
        hidden=sizes.hidden,
        vocab=sizes.vocab,
        max_positions=sizes.max_positions,
        norm_eps=eps,
        tied_head=fields.flag("tie_word_embeddings", True),
        stored=read_stored_dtype(fields),
        embedding_multiplier=_multiplier(fields, "embedding_multiplier"),
        logits_scaling=_multiplier(fields, "logits_scaling"),
        bos_id=read_bos_id(fields, sizes.vocab, 100257),
        eos_ids=read_eos_ids(fields, sizes.vocab, 100257),
    )
    refuse_unread(fields)
    fields.finish()
    return spec


def _multiplier(fields: Fields, name: str) -> float:
    return fields.number(name, _SMALLEST, _LARGEST, 1.0)


def _attentions(fields: Fields, sizes: DecoderSizes) -> list[AttentionSpec]:
    """One for each layer; `attention_multiplier` takes the place of 1/√head_dim."""
    window = None
    if fields.absent("sliding_window") or "sliding_window" in fields:
        window = fields.integer("sliding_window", *WINDOW, 128)
    windows = read_layer_windows(fields, sizes.layers, window, lambda i: i % 4 != 0)
    bias = fields.flag("attention_bias", False)
    scale = _multiplier(fields, "attention_multiplier")
    return [
        AttentionSpec(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            scale=scale,
            rope=rope,
            window=layer_window,
            sinks=True,
            qkv_bias=bias,
            out_bias=bias,
        )
        for rope, layer_window in zip(_ropes(fields, sizes), windows, strict=True)
    ]


def _ropes(fields: Fields, sizes: DecoderSizes) -> list[RopeSpec | None]:
    """`layer_rope_theta` replaces the base of each layer; 0 leaves the layer without rotation."""
    shared = read_rope(fields, sizes.head_dim, sizes.max_positions)
    thetas = read_layer_numbers(
        fields,
        "layer_rope_theta",
        sizes.layers,
        lambda v: v == 0 or theta_fits(v),
        "0, or 2 to 1e+12",
    )
    if thetas is None:
        return [shared] * sizes.layers
    return [replace(shared, theta=theta) if theta else None for theta in thetas]
