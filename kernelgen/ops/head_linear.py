"""Owns the product of each head's row with a matrix of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import DType
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class HeadLinear(Op):
    """`y[t, h, n] = Σ_k x[t, h, k]·w[h, n, k]`, or `·w[h, k, n]` where `across`.

    Inputs: x `[T, H, X]`, of which the first K columns count, and w `[H, N, K]` (`across`:
    `[H, K, N]`). Accumulated in float32, rounded once to `dtype`.
    """

    across: bool
    dtype: DType
    kind: ClassVar[str] = "head_linear"
    traits: ClassVar[Trait] = Trait.HEAD_PRODUCT

    def sizes(self, weight: Type) -> tuple[int, int]:
        """Outputs and inputs of one head."""
        first, last = (d for d in weight.shape[1:] if isinstance(d, int))
        return (last, first) if self.across else (first, last)

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """`[T, H, N]`; raises ValueError when heads or widths do not fit."""
        x, weight = inputs
        if len(x.shape) != 3 or len(weight.shape) != 3 or x.shape[1] != weight.shape[0]:
            raise ValueError(f"head_linear: {x} has not the heads of {weight}")
        outputs, k = self.sizes(weight)
        if k > x.row_width:
            raise ValueError(f"head_linear: {x} is narrower than the {k} columns of {weight}")
        return (Type((*x.shape[:2], outputs), self.dtype),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Two for each weight and token."""
        return 2 * sizes.tokens * inputs[1].static_elements

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """A product for each head in the precision of the inputs."""
        import torch

        x, weight = inputs
        k = weight.shape[1 if self.across else 2]
        product = "thk,hkn->thn" if self.across else "thk,hnk->thn"
        return (torch.einsum(product, x[..., :k], weight),)

    def attributes(self) -> str:
        """Which way the matrices lie."""
        return "across" if self.across else ""
