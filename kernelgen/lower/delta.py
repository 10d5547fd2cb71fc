"""Owns the delta-rule mixer: projections, short convolutions, the scan, a gated norm, output."""

from __future__ import annotations

from kernelgen.core.dtypes import FLOAT32
from kernelgen.ir.expr import arg, call
from kernelgen.lower.linear import linear
from kernelgen.lower.scope import Scope
from kernelgen.ops import DeltaScan, Pointwise, RowReduce, ShortConv, View
from kernelgen.spec.model import DeltaSpec

LENGTH_EPS = 1e-6
"""added to the squared length of a query or key before it is divided by the root"""


def delta_mixer(scope: Scope, name: str, x: str, spec: DeltaSpec, norm_eps: float) -> str:
    """The layer's scan over the tokens of each request, as wide as `x`."""
    act, size = scope.numerics.activation, spec.heads * spec.head_dim
    heads = View((spec.heads, spec.head_dim))
    mixed = [_mixed(scope, f"{name}.{part}", x, spec) for part in "qkv"]
    down = linear(scope, f"{name}.decay_down", x, spec.decay_rank, dtype=act)
    decay = scope.apply(f"{name}.decay_heads", heads, linear(scope, f"{name}.decay_up", down, size))
    learn = linear(scope, f"{name}.beta", x, spec.heads)
    rate, bias = scope.vector(f"{name}.rate", spec.heads), scope.vector(f"{name}.decay_bias", size)
    state = scope.state(f"{name}.memory", spec.heads, spec.head_dim, spec.head_dim)
    op = DeltaScan(spec.head_dim**-0.5, LENGTH_EPS, spec.bound, FLOAT32)
    inputs = (*mixed, decay, learn, rate, bias, state, scope.step("rows"))
    out = scope.builder.scan(f"{name}.scan", op, *inputs)
    gate = scope.apply(f"{name}.gate_heads", heads, _gate(scope, name, x, spec))
    out = _gated_norm(scope, f"{name}.norm", out, gate, norm_eps)
    flat = scope.apply(f"{name}.flat", View((size,)), out)
    return linear(scope, f"{name}.o", flat, scope.width(x))


def _mixed(scope: Scope, name: str, x: str, spec: DeltaSpec) -> str:
    """Queries, keys or values: projected, mixed with the rows before, SiLU; `[T, heads, D]`.

    The projection is rounded: its last rows are kept from step to step.
    """
    act, size = scope.numerics.activation, spec.heads * spec.head_dim
    flat = linear(scope, name, x, size, dtype=act)
    taps = scope.exact(f"{name}_conv.weight", size, spec.taps)
    state = scope.state(f"{name}_window", spec.taps - 1, size, dtype=act)
    mixed = scope.builder.scan(
        f"{name}_conv", ShortConv(FLOAT32), flat, taps, state, scope.step("rows")
    )
    mixed = scope.apply(f"{name}_silu", Pointwise(call("silu", arg(0)), act), mixed)
    return scope.apply(f"{name}_heads", View((spec.heads, spec.head_dim)), mixed)


def _gate(scope: Scope, name: str, x: str, spec: DeltaSpec) -> str:
    """The output gate before its sigmoid, `[T, heads · D]`."""
    size = spec.heads * spec.head_dim
    if spec.gate_rank is None:
        return linear(scope, f"{name}.gate", x, size)
    act = scope.numerics.activation
    down = linear(scope, f"{name}.gate_down", x, spec.gate_rank, dtype=act)
    return linear(scope, f"{name}.gate_up", down, size)


def _gated_norm(scope: Scope, name: str, x: str, gate: str, eps: float) -> str:
    """Each head over its root mean square, times weight and the gate's sigmoid; one rounding."""
    mean = scope.apply(f"{name}.stat", RowReduce("mean", arg(0) * arg(0)), x)
    expr = arg(0) * call("rsqrt", arg(1) + eps) * arg(2) * call("sigmoid", arg(3))
    weight = scope.vector(f"{name}.weight", scope.width(x))
    return scope.apply(name, Pointwise(expr, scope.numerics.activation), x, mean, weight, gate)
