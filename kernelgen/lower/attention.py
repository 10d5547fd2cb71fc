"""Owns grouped-query attention: projections, head norms, rotation, cache, softmax, output."""

from __future__ import annotations

from kernelgen.core.dtypes import FLOAT32, DType
from kernelgen.lower.linear import linear
from kernelgen.lower.norm import rms_norm
from kernelgen.lower.scope import Scope
from kernelgen.ops import Attention, CacheWrite, Rope, View
from kernelgen.spec.model import AttentionSpec


def attention(scope: Scope, name: str, x: str, spec: AttentionSpec, norm_eps: float) -> str:
    """Attention over the layer's cache, as wide as `x`; `norm_eps` is that of the head norms.

    A layer that shares another one's cache has queries alone.
    """
    activation = scope.numerics.activation
    plain = spec.rope is None and not spec.qk_norm
    inner = activation if plain else FLOAT32  # rounded by the rotation or the norm that follows
    q = _heads(scope, f"{name}.q", x, spec.heads, spec, inner)
    own = spec.kv_share_with is None
    k = _heads(scope, f"{name}.k", x, spec.kv_heads, spec, inner) if own else ""
    v = _heads(scope, f"{name}.v", x, spec.kv_heads, spec, activation) if own else ""
    if spec.qk_norm:
        q = rms_norm(scope, f"{name}.q_norm", q, norm_eps)
        k = rms_norm(scope, f"{name}.k_norm", k, norm_eps) if own else k
    if spec.rope is not None:
        table, positions = scope.rope(spec.rope), scope.step("positions")
        rotate = Rope(activation)
        q = scope.apply(f"{name}.q_rope", rotate, q, table, positions)
        k = scope.apply(f"{name}.k_rope", rotate, k, table, positions) if own else k
    rows = scope.step("rows")
    state = scope.cache(spec.kv_heads, spec.head_dim)
    written = scope.apply(f"{name}.cache", CacheWrite(), state, k, v, rows) if own else state
    sinks = (scope.vector(f"{name}.sinks", spec.heads),) if spec.sinks else ()
    op = Attention(spec.scale, spec.window, spec.sinks, activation)
    out = scope.apply(name, op, q, written, rows, *sinks)
    flat = scope.apply(f"{name}.flat", View((spec.heads * spec.head_dim,)), out)
    return linear(scope, f"{name}.o", flat, scope.width(x), bias=spec.out_bias)


def _heads(scope: Scope, name: str, x: str, heads: int, spec: AttentionSpec, dtype: DType) -> str:
    flat = linear(scope, name, x, heads * spec.head_dim, bias=spec.qkv_bias, dtype=dtype)
    return scope.apply(f"{name}_heads", View((heads, spec.head_dim)), flat)
