"""Owns the projection: rows times a weight matrix stored `[outputs, inputs]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import DType
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class Linear(Op):
    """`y[t, n] = Σ_k x[t, k]·w[n, k]`, accumulated in float32, rounded once to `dtype`. A bias
    is a pointwise op after it."""

    dtype: DType
    kind: ClassVar[str] = "linear"
    traits: ClassVar[Trait] = Trait.MATMUL

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """`[rows, outputs]`; raises ValueError when the inner sizes differ."""
        x, w = inputs
        if len(x.shape) != 2 or len(w.shape) != 2 or w.leading or x.shape[1] != w.shape[1]:
            raise ValueError(f"linear: {x} does not fit the weight {w}")
        return (Type((x.shape[0], w.shape[0]), self.dtype),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Two for each weight and row."""
        return 2 * inputs[0].elements(sizes) * sizes.of(inputs[1].shape[0])

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """Matrix product in the precision of the inputs."""
        return (inputs[0] @ inputs[1].T,)
