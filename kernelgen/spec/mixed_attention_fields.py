"""Owns fields of decoders that mix window and full layers: bases by layer, scale, multipliers."""

from __future__ import annotations

from dataclasses import replace

from kernelgen.spec.decoder_fields import DecoderSizes
from kernelgen.spec.fields import Fields
from kernelgen.spec.layer_fields import WINDOW, read_layer_numbers, read_layer_windows
from kernelgen.spec.model import AttentionSpec
from kernelgen.spec.rope import RopeSpec
from kernelgen.spec.rope_fields import read_rope, theta_fits

_SMALLEST, _LARGEST = 1e-6, 1e6  # of a multiplier


def read_multiplier(fields: Fields, name: str) -> float:
    """A factor, 1 where the key is absent."""
    return fields.number(name, _SMALLEST, _LARGEST, 1.0)


def read_mixed_attention(
    fields: Fields, sizes: DecoderSizes, *, window: int, every: int
) -> list[AttentionSpec]:
    """Attention with sinks, one for each layer; `attention_multiplier` replaces 1/√head_dim.

    `window`: of an absent `sliding_window`. Without `layer_types` layers 0, `every`, 2·`every` …
    are full.
    """
    given = None
    if fields.absent("sliding_window") or "sliding_window" in fields:
        given = fields.integer("sliding_window", *WINDOW, window)
    windows = read_layer_windows(fields, sizes.layers, given, lambda i: i % every != 0)
    bias = fields.flag("attention_bias", False)
    scale = read_multiplier(fields, "attention_multiplier")
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
