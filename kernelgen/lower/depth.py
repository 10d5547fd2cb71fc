"""Owns mixing over depth: a softmax over the sums of blocks of layers in place of one stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from kernelgen.ir.expr import Expr, arg, call
from kernelgen.lower.scope import Scope
from kernelgen.ops import Pointwise, RowReduce

_Join = Callable[[Expr, Expr], Expr]


def closed_stream(number: int) -> str:
    """The stream that holds the sum of a closed block."""
    return f"block.{number}"


def depth_mix(
    scope: Scope, name: str, x: str, closed: int, eps: float, newest: str | None = None
) -> str:
    """The mixture of `closed` blocks, the one that this layer closes (`newest`) and the open
    one's sum `x`, in the dtype of the stream.

    A source's score is its product with one vector over its root mean square; weights are the
    softmax of all scores, and what they mix are the sources themselves.
    """
    sources = [scope.stream(scope.width(x), closed_stream(i)) for i in range(closed)]
    sources += [x] if newest is None else [newest, x]
    norm = scope.vector(f"{name}.norm.weight", scope.width(x))
    probe = scope.vector(f"{name}.probe.weight", scope.width(x))
    dot, square = arg(0) * arg(1) * arg(2), arg(0) * arg(0)
    scores = []
    for i, source in enumerate(sources):
        hit = scope.apply(f"{name}.dot.{i}", RowReduce("sum", dot), source, norm, probe)
        mean = scope.apply(f"{name}.stat.{i}", RowReduce("mean", square), source)
        score = Pointwise(arg(0) * call("rsqrt", arg(1) + eps), scope.numerics.vector)
        scores.append(scope.apply(f"{name}.score.{i}", score, hit, mean))
    top = _folded(scope, f"{name}.top", lambda a, b: call("max", a, b), scores)
    power = Pointwise(call("exp", arg(0) - arg(1)), scope.numerics.vector)
    weights = [
        scope.apply(f"{name}.power.{i}", power, score, top) for i, score in enumerate(scores)
    ]
    total = _folded(scope, f"{name}.total", lambda a, b: a + b, weights)
    count = len(sources)
    mixed = reduce(lambda a, b: a + b, (arg(i) * arg(count + i) for i in range(count)))
    op = Pointwise(mixed / arg(2 * count), scope.numerics.stream)
    return scope.apply(name, op, *sources, *weights, total)


def _folded(scope: Scope, name: str, join: _Join, values: list[str]) -> str:
    """One number a row from several."""
    expr = reduce(join, (arg(i) for i in range(len(values))))
    return scope.apply(name, Pointwise(expr, scope.numerics.vector), *values)
