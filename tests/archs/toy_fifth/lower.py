"""Owns the layer: one norm feeds attention and MLP, whose results join the stream together."""

from __future__ import annotations

from kernelgen.core.dtypes import DType
from kernelgen.ir.graph import Graph
from kernelgen.lower import (
    Scope,
    add_residual,
    attention,
    gated_mlp,
    lower_decoder,
    rms_norm,
)
from kernelgen.spec.model import LayerSpec, ModelSpec


def lower(spec: ModelSpec, activation: DType) -> Graph:
    """The usual skeleton around this layer."""
    return lower_decoder(spec, activation, layer=_layer)


def _layer(scope: Scope, layer: LayerSpec, x: str) -> str:
    inner = rms_norm(scope, "norm", x, layer.norm_eps)
    mixed = attention(scope, "attn", inner, layer.attention, layer.norm_eps)
    fed = gated_mlp(scope, "mlp", inner, layer.mlp)
    return add_residual(scope, "residual", x, mixed, fed)
