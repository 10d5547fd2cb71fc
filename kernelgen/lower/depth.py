"""Owns mixing over depth: a softmax over the sums of blocks of layers in place of one stream."""

from __future__ import annotations

from kernelgen.lower.scope import Scope
from kernelgen.ops import DepthMix


def closed_stream(number: int) -> str:
    """The stream that holds the sum of a closed block."""
    return f"block.{number}"


def depth_mix(
    scope: Scope, name: str, x: str, closed: int, eps: float, newest: str | None = None
) -> str:
    """The mixture of `closed` blocks, the one that this layer closes (`newest`) and the open
    one's sum `x`, in the dtype of the stream.
    """
    width = scope.width(x)
    sources = [scope.stream(width, closed_stream(i)) for i in range(closed)]
    sources += [x] if newest is None else [newest, x]
    norm = scope.vector(f"{name}.norm.weight", width)
    probe = scope.vector(f"{name}.probe.weight", width)
    return scope.apply(name, DepthMix(eps, scope.numerics.stream), *sources, norm, probe)
