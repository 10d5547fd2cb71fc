"""Owns the weights of chosen experts: their scores, over their sum if so wished, times a factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import FLOAT32
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type
from kernelgen.ops.scoring import NO_DIVISION_BY_ZERO, has_nan, known_scoring, scores


@dataclass(frozen=True)
class WeighExperts(Op):
    """`w[t, j] = scale · score(logits)[t, ids[t, j]]`, over Σ_j of them where `renormalise`.

    Inputs: logits `[T, E]`, ids `[T, k]` (of the whole model, not of a rank). A softmax that is
    renormalised is the softmax over the chosen logits. A row with a NaN logit has NaN weights.
    """

    scoring: str
    renormalise: bool = True
    scale: float = 1.0
    kind: ClassVar[str] = "weigh_experts"
    traits: ClassVar[Trait] = Trait.ROUTE

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """`float32 [T, k]`."""
        logits, ids = inputs
        known_scoring(self.scoring)
        if len(logits.shape) != 2 or len(ids.shape) != 2 or ids.row_width > logits.row_width:
            raise ValueError(f"weigh_experts: ids {ids} do not choose among {logits}")
        return (Type(ids.shape, FLOAT32),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """About twenty for each score."""
        whole = self.scoring == "softmax" and not self.renormalise
        return 20 * inputs[0 if whole else 1].elements(sizes)

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """The formula in the precision of the logits."""
        import torch

        logits, ids = inputs
        if self.scoring == "softmax" and self.renormalise:
            weights = torch.softmax(logits.gather(1, ids), dim=-1)
        else:
            weights = scores(self.scoring, logits).gather(1, ids)
            if self.renormalise:
                weights = weights / (weights.sum(-1, keepdim=True) + NO_DIVISION_BY_ZERO)
        return (torch.where(has_nan(logits), torch.nan, weights * self.scale),)

    def attributes(self) -> str:
        """What decides the weights."""
        return f"{self.scoring} renormalise={self.renormalise} scale={self.scale!r}"
