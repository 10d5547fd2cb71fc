"""Owns attention over a paged cache: causal, grouped heads, optional window, optional sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import DType
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class Attention(Op):
    """`o[t, h] = Σ_j softmax_j(scale·q·k_j) v_j` over the cache entries of the token's own request.

    Entry j is visible to position p iff `j ≤ p` and, with a window W, `p − j < W`. A sink of head h
    adds `exp(sink_h)` to the
    denominator: it takes no scale, no mask and has no value. Inputs: q `[T, heads, D]`, state,
    rows, sinks `[heads]` if any, and with `scaled` what keys and values of the cache are multiplied
    with (`float32 [2]`).
    """

    scale: float
    window: int | None
    sinks: bool
    dtype: DType
    scaled: bool = False
    kind: ClassVar[str] = "attention"
    traits: ClassVar[Trait] = Trait.ATTENTION | Trait.STATE_READ

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """The shape of q; raises ValueError when heads do not share the cache evenly."""
        q, state = inputs[0], inputs[1]
        heads, kv_heads = q.shape[1], state.shape[0]
        if not isinstance(heads, int) or not isinstance(kv_heads, int) or heads % kv_heads:
            raise ValueError(f"attention: {heads} heads do not divide over {kv_heads} kv heads")
        wanted = 3 + self.sinks + self.scaled
        if len(inputs) != wanted:
            raise ValueError(f"attention: {wanted} inputs expected, got {len(inputs)}")
        return (Type(q.shape, self.dtype),)

    def visible(self, sizes: Sizes) -> int:
        """Cache entries that one token reads at most."""
        return min(sizes.context, self.window) if self.window else sizes.context

    def pairs(self, sizes: Sizes) -> int:
        """Query-key pairs of the step: causal prefill sees half of its own chunk."""
        per_request = max(1, sizes.tokens // max(1, sizes.rows))
        mean = max(1, sizes.context - (per_request - 1) // 2)
        return sizes.tokens * (min(mean, self.window) if self.window else mean)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Two products of 2·D and about ten for the exponential, for each pair and head."""
        heads = inputs[0].static_elements // inputs[0].row_width
        return self.pairs(sizes) * heads * (4 * inputs[0].row_width + 10)

    def read_bytes(self, index: int, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Of the cache: the visible entries of each request, keys and values."""
        if index != 1:
            return inputs[index].size_bytes(sizes)
        state = inputs[1]
        per_request = max(1, sizes.tokens // max(1, sizes.rows))
        entries = sizes.context
        if self.window:
            entries = min(entries, self.window + per_request - 1)
        return sizes.rows * entries * 2 * state.static_elements * state.dtype.bits // 8

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """Plain softmax in the precision of q, one token and head group at a time."""
        import torch

        q, state = inputs[0], inputs[1]
        of_keys, of_values = inputs[3 + self.sinks] if self.scaled else (1.0, 1.0)
        out = torch.zeros_like(q)
        for t, (row, position) in enumerate(
            zip(step.request.tolist(), step.positions.tolist(), strict=True)
        ):
            if row < 0:
                continue
            first = max(0, position - self.window + 1) if self.window else 0
            keys = state.keys[row][first : position + 1].to(q.dtype)
            values = state.values[row][first : position + 1].to(q.dtype)
            group = q.shape[1] // keys.shape[1]
            keys, values = (z.repeat_interleave(group, dim=1) for z in (keys, values))
            scores = torch.einsum("hd,nhd->hn", q[t], keys) * (self.scale * of_keys)
            if self.sinks:
                sink = inputs[3].to(q.dtype)[:, None]
                weights = torch.softmax(torch.cat([scores, sink], dim=1), dim=1)[:, :-1]
            else:
                weights = torch.softmax(scores, dim=1)
            out[t] = torch.einsum("hn,nhd->hd", weights, values) * of_values
        return (out,)

    def attributes(self) -> str:
        """Scale, window and sinks."""
        scaled = " scaled" if self.scaled else ""
        return f"scale={self.scale!r} window={self.window} sinks={self.sinks}{scaled}"
