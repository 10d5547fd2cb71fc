"""Owns reading a config: head size 128 and 32 kv heads where the keys are absent."""

from __future__ import annotations

from kernelgen.spec.config import ConfigFile
from kernelgen.spec.decoder_fields import (
    ACTIVATIONS,
    DecoderSizes,
    read_bos_id,
    read_eos_ids,
    read_eps,
    read_sizes,
    read_stored_dtype,
)
from kernelgen.spec.fields import Fields
from kernelgen.spec.layer_fields import WINDOW, read_layer_windows
from kernelgen.spec.model import Activation, AttentionSpec, LayerSpec, MlpSpec, ModelSpec
from kernelgen.spec.rope import RopeSpec
from kernelgen.spec.rope_fields import read_rope
from kernelgen.spec.unread import refuse_unread


def read_spec(config: ConfigFile) -> ModelSpec:
    """The model that a config describes; all its problems at once."""
    fields = Fields.of(config)
    sizes = read_sizes(fields, max_positions=32768, kv_heads=32, head_dim=128)
    rope = read_rope(fields, sizes.head_dim, sizes.max_positions)
    bias = fields.flag("attention_bias", False)
    eps = read_eps(fields, 1e-6)
    mlp = MlpSpec(sizes.intermediate, fields.choice("hidden_act", ACTIVATIONS, Activation.SILU))
    windows = _windows(fields, sizes)
    kinds = {w: LayerSpec(_attention(sizes, rope, bias, w), mlp, eps) for w in set(windows)}
    spec = ModelSpec(
        architecture="qwen3",
        layers=tuple(kinds[window] for window in windows),
        hidden=sizes.hidden,
        vocab=sizes.vocab,
        max_positions=sizes.max_positions,
        norm_eps=eps,
        tied_head=fields.flag("tie_word_embeddings", False),
        stored=read_stored_dtype(fields),
        bos_id=read_bos_id(fields, sizes.vocab, None),
        eos_ids=read_eos_ids(fields, sizes.vocab, None),
    )
    refuse_unread(fields)
    fields.finish()
    return spec


def _windows(fields: Fields, sizes: DecoderSizes) -> tuple[int | None, ...]:
    """A window counts only beside `use_sliding_window`, from layer `max_window_layers` on."""
    first = fields.integer("max_window_layers", 0, 1 << 16, 28)
    if not fields.flag("use_sliding_window", False):
        fields.raw("sliding_window")
        return read_layer_windows(fields, sizes.layers, None, lambda i: False)
    window = None
    if fields.absent("sliding_window") or "sliding_window" in fields:
        window = fields.integer("sliding_window", *WINDOW, 4096)
    return read_layer_windows(
        fields, sizes.layers, window, lambda i: window is not None and i >= first
    )


def _attention(
    sizes: DecoderSizes, rope: RopeSpec, bias: bool, window: int | None
) -> AttentionSpec:
    return AttentionSpec(
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        scale=sizes.head_dim**-0.5,
        rope=rope,
        window=window,
        qk_norm=True,
        qkv_bias=bias,
        out_bias=bias,
    )
