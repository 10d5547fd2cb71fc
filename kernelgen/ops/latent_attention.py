"""Owns attention over latent rows: one row a token that all heads share, key and value in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import DType
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class LatentAttention(Op):
    """`o[t, h] = Σ_j softmax_j(scale·(a·c_j + b·p_j))·c_j` over the entries j ≤ position of the
    token's own request.

    Entry j is `[c_j (R) | p_j (P)]`. Inputs: a `[T, H, R]` (queries that were taken to the latent
    space), q `[T, H, X]`, of which the last P columns are b, state `[R + P]`, rows.
    """

    scale: float
    dtype: DType
    kind: ClassVar[str] = "latent_attention"
    traits: ClassVar[Trait] = Trait.LATENT | Trait.STATE_READ

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """The shape of a; raises ValueError when the queries do not fit the rows."""
        a, q, state, _rows = inputs
        if len(a.shape) != 3 or q.shape[:2] != a.shape[:2] or len(state.shape) != 1:
            raise ValueError(f"latent_attention: {a} and {q} are not of the same heads")
        if not 0 <= state.row_width - a.row_width <= q.row_width:
            raise ValueError(f"latent_attention: {a} and {q} do not fit the rows {state}")
        return (Type(a.shape, self.dtype),)

    def pairs(self, sizes: Sizes) -> int:
        """Query-key pairs of the step: causal prefill sees half of its own chunk."""
        per_request = max(1, sizes.tokens // max(1, sizes.rows))
        return sizes.tokens * max(1, sizes.context - (per_request - 1) // 2)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Products with the whole row and with its latent part, about ten for the exponential."""
        heads = inputs[0].static_elements // inputs[0].row_width
        each = 2 * inputs[2].row_width + 2 * inputs[0].row_width + 10
        return self.pairs(sizes) * heads * each

    def read_bytes(self, index: int, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Of the cache: every entry of each request, once for all heads."""
        size = inputs[index].size_bytes(sizes)
        return sizes.rows * sizes.context * size if index == 2 else size

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """Plain softmax in the precision of the queries, token by token."""
        import torch

        a, q, state, _rows = inputs
        out, rank = torch.zeros_like(a), a.shape[-1]
        for t, (row, position) in enumerate(
            zip(step.request.tolist(), step.positions.tolist(), strict=True)
        ):
            if row < 0:
                continue
            entries = state.rows[row][: position + 1].to(a.dtype)
            latent, beside = entries[:, :rank], entries[:, rank:]
            scores = a[t] @ latent.T + q[t][:, q.shape[-1] - beside.shape[1] :] @ beside.T
            out[t] = torch.softmax(scores * self.scale, dim=1) @ latent
        return (out,)

    def attributes(self) -> str:
        """The scale."""
        return f"scale={self.scale!r}"
