"""Owns the decoder skeleton: embedding, one block for each distinct layer, head and sampling."""

from __future__ import annotations

from collections.abc import Callable

from kernelgen.core.dtypes import FLOAT32, DType
from kernelgen.ir.expr import arg
from kernelgen.ir.graph import Block, BlockBuilder, Graph, Placement
from kernelgen.lower.depth import closed_stream, depth_mix
from kernelgen.lower.mixer import kept, mixer
from kernelgen.lower.mlp import gated_mlp
from kernelgen.lower.moe import mixture
from kernelgen.lower.names import layer_names
from kernelgen.lower.norm import rms_norm
from kernelgen.lower.residual import add_residual
from kernelgen.lower.scope import STREAM, Numerics, Scope, rope_tables
from kernelgen.ops import Embed, Linear, Pointwise, Sample, SelectRows
from kernelgen.spec.model import DepthSpec, LayerSpec, ModelSpec, MoeSpec

LayerBody = Callable[[Scope, LayerSpec, str], str]
"""Builds one layer: scope, layer, stream in; stream out."""


def decoder_layer(scope: Scope, layer: LayerSpec, x: str) -> str:
    """Pre-norm mixer and MLP (or routed experts), each added to the stream."""
    if layer.depth is not None:
        return _depth_layer(scope, layer, layer.depth, x)
    multiplier = layer.residual_multiplier
    inner = rms_norm(scope, "attn_norm", x, layer.norm_eps)
    mixed = mixer(scope, "attn", inner, layer.attention, layer.norm_eps)
    x = add_residual(scope, "attn.residual", x, mixed, multiplier=multiplier)
    fed = _fed(scope, layer, x)
    return add_residual(scope, "mlp.residual", x, *fed, multiplier=multiplier)


def _depth_layer(scope: Scope, layer: LayerSpec, depth: DepthSpec, x: str) -> str:
    """The same where each part reads a mixture over depth; `x` is the open block's sum.

    A layer that closes it starts anew with what its mixer makes; the very first reads the
    embedding, the only source there is.
    """
    eps, multiplier, closed = layer.norm_eps, layer.residual_multiplier, depth.closed
    read = depth_mix(scope, "attn_depth", x, closed, eps) if closed else x
    inner = rms_norm(scope, "attn_norm", read, eps)
    mixed = mixer(scope, "attn", inner, layer.attention, eps)
    if not depth.closes:
        x = add_residual(scope, "attn.residual", x, mixed, multiplier=multiplier)
        read = depth_mix(scope, "mlp_depth", x, closed, eps)
    else:
        opened = Pointwise(arg(0) * multiplier, scope.numerics.stream)
        newest, x = x, scope.apply("attn.opened", opened, mixed)
        read = depth_mix(scope, "mlp_depth", x, closed, eps, newest=newest)
    fed = _fed(scope, layer, read)
    return add_residual(scope, "mlp.residual", x, *fed, multiplier=multiplier)


def _fed(scope: Scope, layer: LayerSpec, x: str) -> tuple[str, ...]:
    """What the MLP or the experts make of `x`, normed first."""
    inner = rms_norm(scope, "mlp_norm", x, layer.norm_eps)
    if isinstance(layer.mlp, MoeSpec):
        return mixture(scope, "mlp", inner, layer.mlp)
    return (gated_mlp(scope, "mlp", inner, layer.mlp),)


def lower_decoder(spec: ModelSpec, activation: DType, *, layer: LayerBody = decoder_layer) -> Graph:
    """The graph of a decoder-only model; `layer` builds the body of one layer.

    Work grows with the number of distinct layers; each further layer costs one placement.
    """
    numerics = Numerics.of(spec.stored, activation)
    kinds, of_layer = spec.kinds()
    tables = rope_tables(kinds, spec.max_positions)

    def scope(name: str) -> Scope:
        return Scope(BlockBuilder(name), numerics, tables)

    bodies = []
    for name, kind in zip(layer_names(kinds), kinds, strict=True):
        inner = scope(name)
        results = [(STREAM, layer(inner, kind, inner.stream(spec.hidden)))]
        if kind.depth is not None and kind.depth.closes:
            results.append((closed_stream(kind.depth.closed), STREAM))
        bodies.append(inner.builder.build(results))
    blocks = (_embed(scope("embed"), spec), *bodies, _head(scope("head"), spec))
    layers = tuple(Placement(kind + 1, i) for i, kind in enumerate(of_layer))
    caches = [kept(k.attention, numerics) for k in kinds]
    return Graph(
        name=spec.architecture,
        blocks=blocks,
        sequence=(Placement(0, None), *layers, Placement(len(blocks) - 1, None)),
        caches=tuple((i, one) for i, kind in enumerate(of_layer) for one in caches[kind]),
        tables=tuple(tables.values()),
    )


def _embed(scope: Scope, spec: ModelSpec) -> Block:
    table = scope.matrix("embed.weight", spec.vocab, spec.hidden)
    x = scope.apply("embed", Embed(scope.numerics.stream), scope.step("token_ids"), table)
    if spec.embedding_multiplier != 1.0:
        scaled = Pointwise(arg(0) * spec.embedding_multiplier, scope.numerics.stream)
        x = scope.apply("embed.scaled", scaled, x)
    return scope.builder.build([(STREAM, x)])


def _head(scope: Scope, spec: ModelSpec) -> Block:
    x = scope.stream(spec.hidden)
    if spec.closed_blocks is not None:
        x = depth_mix(scope, "head_depth", x, spec.closed_blocks, spec.norm_eps)
    x = scope.apply("head.rows", SelectRows(), x, scope.step("logit_tokens"))
    x = rms_norm(scope, "head_norm", x, spec.norm_eps)
    name = "embed.weight" if spec.tied_head else "head.weight"
    logits = scope.apply("head", Linear(FLOAT32), x, scope.matrix(name, spec.vocab, spec.hidden))
    if spec.logits_scaling != 1.0:
        scaled = Pointwise(arg(0) / spec.logits_scaling, FLOAT32)
        logits = scope.apply("head.scaled", scaled, logits)
    sampled = scope.apply("sample", Sample(), logits, scope.step("sampling"))
    return scope.builder.build([("logits", logits), ("sampled", sampled)])
