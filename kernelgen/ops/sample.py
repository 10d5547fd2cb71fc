"""Owns the choice of a token: greedy, or temperature, top-k, top-p and keyed Gumbel noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import INT32
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type

_MASK = 0xFFFFFFFF


def murmur3_word(seed: int, position: int, token: int) -> int:
    """MurmurHash3-x86-32 (hash seed 0) of the 16 bytes (int64 seed, int32 position, uint32
    token)."""
    h = 0
    for word in (seed & _MASK, (seed >> 32) & _MASK, position & _MASK, token & _MASK):
        k = word * 0xCC9E2D51 & _MASK
        k = ((k << 15) | (k >> 17)) & _MASK
        h ^= k * 0x1B873593 & _MASK
        h = ((h << 13) | (h >> 19)) & _MASK
        h = (h * 5 + 0xE6546B64) & _MASK
    h ^= 16
    h ^= h >> 16
    h = h * 0x85EBCA6B & _MASK
    h ^= h >> 13
    h = h * 0xC2B2AE35 & _MASK
    return h ^ (h >> 16)


def gumbel(word: int) -> float:
    """`−log(−log1p(−u))` with `u = (word + 0.5)·2⁻³²`: the full tail survives float32."""
    return -math.log(-math.log1p(-(word + 0.5) * 2.0**-32))


@dataclass(frozen=True)
class Sample(Op):
    """Token id for each logit row. Inputs: logits `[B, vocabulary]` and the step's sampling fields
    `[B]`.

    Temperature 0 is argmax, ties to the lowest id; else logits ÷ temperature, min-p, top-k, top-p
    (smallest set whose mass reaches p), then argmax of logit + noise keyed by (seed, position,
    token).
    """

    kind: ClassVar[str] = "sample"
    traits: ClassVar[Trait] = Trait.SAMPLE

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """One int32 for each logit row."""
        return (Type((inputs[0].shape[0],), INT32),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """About one comparison for each logit; the rest depends on the request."""
        return inputs[0].elements(sizes)

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """The rule, one row at a time."""
        import torch

        logits = inputs[0]
        chosen = [self._choose(logits[b], b, step) for b in range(logits.shape[0])]
        return (torch.tensor(chosen, dtype=torch.int32),)

    def _choose(self, row: Any, b: int, step: Any) -> int:
        import torch

        if step.temperature[b] == 0:
            return int(row.argmax())
        x = row / step.temperature[b]
        order = torch.argsort(x, descending=True, stable=True)
        if step.min_p and step.min_p[b] > 0:
            order = order[x[order] >= x.max() + math.log(step.min_p[b])]
        if step.top_k[b] > 0:
            order = order[: step.top_k[b]]
        mass = torch.softmax(x[order], dim=0).cumsum(0)
        if step.top_p[b] < 1:
            order = order[: int((mass < step.top_p[b]).sum()) + 1]
        noisy = [
            (float(x[i]) + gumbel(murmur3_word(step.seed[b], step.position[b], i)), -i)
            for i in order.tolist()
        ]
        return int(-max(noisy)[1])
