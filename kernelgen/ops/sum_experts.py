"""Owns the weighted sum of what a token's experts have computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import FLOAT32
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class SumExperts(Op):
    """`out[t, i] = Σ_j w[t, j]·y[t, j, i]` in float32, j ascending: best expert first, whichever
    order they were computed in. Inputs: y `[T, k, N]`, weights `[T, k]`."""

    kind: ClassVar[str] = "sum_experts"
    traits: ClassVar[Trait] = Trait.EXPERT_SUM

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """`float32 [T, N]`."""
        y, weights = inputs
        if len(y.shape) != 3 or weights.shape != y.shape[:2]:
            raise ValueError(f"sum_experts: weights {weights} do not fit {y}")
        return (Type((y.shape[0], y.shape[2]), FLOAT32),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Two for each element."""
        return 2 * inputs[0].elements(sizes)

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """The sum in the precision of the inputs."""
        y, weights = inputs
        return ((y * weights[:, :, None]).sum(1),)
