"""Owns splitting a prologue's expression into what scales a whole row and what differs along it."""

from __future__ import annotations

from kernelgen.ir.expr import Expr, call, const


def split_factors(expr: Expr, scalars: frozenset[int]) -> tuple[Expr | None, Expr | None]:
    """(factors that read only inputs numbered in `scalars`, the rest), either None where it is 1.

    Raises ValueError where a factor reads both kinds; `row_prep` never defers such an expression.
    """
    if expr.fn in ("mul", "div"):
        (s0, r0), (s1, r1) = (split_factors(a, scalars) for a in expr.args)
        return _joined(expr.fn, s0, s1), _joined(expr.fn, r0, r1)
    if expr.fn == "neg":
        scale, rest = split_factors(expr.args[0], scalars)
        return scale, call("neg", rest if rest is not None else const(1.0))
    used = _used(expr)
    if used and used <= scalars:
        return expr, None
    if used & scalars:
        raise ValueError(f"{expr} mixes a row's statistic with its elements")
    return None, expr


def _joined(fn: str, a: Expr | None, b: Expr | None) -> Expr | None:
    if b is None:
        return a
    if a is None and fn == "mul":
        return b
    return call(fn, a if a is not None else const(1.0), b)


def _used(expr: Expr) -> frozenset[int]:
    if expr.fn == "arg":
        return frozenset({expr.index})
    return frozenset().union(*(_used(a) for a in expr.args))
