"""Owns the gated MLP and the scalar functions it may use."""

from __future__ import annotations

import math

from kernelgen.ir.expr import Expr, arg, call
from kernelgen.lower.linear import linear
from kernelgen.lower.scope import Scope
from kernelgen.ops import Pointwise
from kernelgen.spec.model import Activation, MlpSpec


def activation_expr(activation: Activation, x: Expr) -> Expr:
    """The scalar function as an expression of `x`."""
    if activation is Activation.SILU:
        return call("silu", x)
    if activation is Activation.RELU2:
        positive = call("max", x, 0.0)
        return positive * positive
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (call("tanh", inner) + 1.0)


def gated_expr(spec: MlpSpec) -> Expr:
    """What becomes of gate (argument 0) and up (argument 1)."""
    gate, up = arg(0), arg(1)
    if spec.limit is not None:
        gate = call("min", gate, spec.limit)
        up = call("max", call("min", up, spec.limit), -spec.limit)
    if spec.up_cap is not None:
        up = _capped(up, spec.up_cap)
    if spec.gate_cap is not None:
        return _capped(gate, spec.gate_cap) * call("sigmoid", gate) * up
    return activation_expr(spec.activation, gate) * up


def _capped(x: Expr, cap: float) -> Expr:
    """Near x where it is small, within ± cap."""
    return call("tanh", x / cap) * cap


def gated_mlp(scope: Scope, name: str, x: str, spec: MlpSpec) -> str:
    """`down(act(gate(x)) · up(x))`, as wide as `x`; act and product are one rounding."""
    gate = linear(scope, f"{name}.gate", x, spec.intermediate, bias=spec.bias)
    up = linear(scope, f"{name}.up", x, spec.intermediate, bias=spec.bias)
    act = Pointwise(gated_expr(spec), scope.numerics.activation)
    inner = scope.apply(f"{name}.act", act, gate, up)
    return linear(scope, f"{name}.down", inner, scope.width(x), bias=spec.bias)
