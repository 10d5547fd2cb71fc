"""Owns latent attention: one row a token in the cache, queries and results taken to its space."""

from __future__ import annotations

from kernelgen.core.dtypes import FLOAT32
from kernelgen.ir.expr import arg, call
from kernelgen.lower.linear import linear
from kernelgen.lower.norm import rms_norm
from kernelgen.lower.scope import Scope
from kernelgen.ops import HeadLinear, LatentAttention, LatentWrite, Pointwise, View
from kernelgen.spec.model import LatentSpec


def latent_attention(scope: Scope, name: str, x: str, spec: LatentSpec) -> str:
    """Attention over the layer's latent rows, as wide as `x`.

    Keys and values are never made: a head's query is multiplied with the matrix that would make its
    keys, its result with the one that would make its values. So a token costs its row in the cache
    and nothing else, and chunks of prompts have the arithmetic of single tokens.
    """
    act, rows = scope.numerics.activation, scope.step("rows")
    query = _queries(scope, name, x, spec)
    both = linear(scope, f"{name}.kv", x, spec.rank + spec.beside, dtype=act)
    latent = scope.apply(f"{name}.latent", View((spec.rank,)), both)
    latent = rms_norm(scope, f"{name}.latent_norm", latent, spec.norm_eps)
    beside = scope.apply(f"{name}.beside", View((spec.beside,), spec.rank), both)
    state = scope.latent_cache(spec.rank + spec.beside)
    written = scope.apply(f"{name}.cache", LatentWrite(), state, latent, beside, rows)
    keys = scope.stack(f"{name}.key_up.weight", spec.heads, spec.nope, spec.rank)
    inner = scope.apply(f"{name}.key_up", HeadLinear(True, act), query, keys)
    op = LatentAttention(spec.scale, act)
    out = scope.apply(name, op, inner, query, written, rows)
    values = scope.stack(f"{name}.value_up.weight", spec.heads, spec.value_dim, spec.rank)
    product = HeadLinear(False, FLOAT32 if spec.gate else act)
    out = scope.apply(f"{name}.value_up", product, out, values)
    width = spec.heads * spec.value_dim
    flat = scope.apply(f"{name}.flat", View((width,)), out)
    if spec.gate:
        gate = linear(scope, f"{name}.gate", x, width)
        weighted = Pointwise(arg(0) * call("sigmoid", arg(1)), act)
        flat = scope.apply(f"{name}.gated", weighted, flat, gate)
    return linear(scope, f"{name}.o", flat, scope.width(x))


def _queries(scope: Scope, name: str, x: str, spec: LatentSpec) -> str:
    """`[T, heads, nope + beside]`, from the row itself or from a latent of it."""
    act, each = scope.numerics.activation, spec.nope + spec.beside
    part = "q"
    if spec.query_rank is not None:
        down = linear(scope, f"{name}.q_down", x, spec.query_rank)
        x, part = rms_norm(scope, f"{name}.q_norm", down, spec.norm_eps), "q_up"
    flat = linear(scope, f"{name}.{part}", x, spec.heads * each, dtype=act)
    return scope.apply(f"{name}.q_heads", View((spec.heads, each)), flat)
