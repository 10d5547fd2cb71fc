"""Owns the choice of experts: the best scores of each row, by groups if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import INT32
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type
from kernelgen.ops.scoring import best_first, has_nan, known_scoring, scores


@dataclass(frozen=True)
class ChooseExperts(Op):
    """`ids[t, j]`: the expert with the j-th largest value of row t; ties go to the lower number.

    Inputs: logits `[T, E]` and, where there is one, a bias `[E]` for the choice. Values are scores
    plus bias; without bias and groups the logits themselves, since every scoring keeps their order.
    With groups, experts outside the `kept_groups` best groups have the value −∞; a group counts as
    the sum of its `group_top` largest values. A row with a NaN among its values takes experts
    0 … top_k − 1: `WeighExperts` makes its weights NaN, and nothing outside the row is touched.
    """

    top_k: int
    scoring: str
    groups: int = 1
    kept_groups: int = 1
    group_top: int = 1
    kind: ClassVar[str] = "choose_experts"
    traits: ClassVar[Trait] = Trait.ROUTE

    @property
    def by_logits(self) -> bool:
        """Whether groups ask for scores; a bias does too."""
        return self.groups == 1

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """`int32 [T, top_k]`; raises ValueError when so many experts cannot be chosen."""
        logits = inputs[0]
        known_scoring(self.scoring)
        experts = logits.row_width
        if len(logits.shape) != 2 or len(inputs) > 2:
            raise ValueError(f"choose_experts: {logits} and {len(inputs) - 1} biases")
        if len(inputs) == 2 and inputs[1].shape != (experts,):
            raise ValueError(f"choose_experts: bias {inputs[1]} for {experts} experts")
        if not 1 <= self.top_k <= experts:
            raise ValueError(f"choose_experts: {self.top_k} of {experts} experts")
        if self.groups < 1 or experts % self.groups or not 1 <= self.kept_groups <= self.groups:
            raise ValueError(f"choose_experts: {self.kept_groups} of {self.groups} groups")
        each = experts // self.groups
        if self.top_k > self.kept_groups * each or not 1 <= self.group_top <= each:
            raise ValueError(f"choose_experts: groups of {each} are too small")
        return (Type((logits.shape[0], self.top_k), INT32),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """A comparison for each logit and choice, twenty for a score."""
        scored = 20 if self.groups > 1 or len(inputs) > 1 else 0
        return inputs[0].elements(sizes) * (self.top_k + scored)

    def values(self, inputs: Sequence[Any]) -> Any:
        """What experts are compared by, groups left aside."""
        logits = inputs[0]
        if len(inputs) == 1 and self.by_logits:
            return logits
        scored = scores(self.scoring, logits)
        return scored + inputs[1] if len(inputs) > 1 else scored

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """A stable sort."""
        import torch

        values = self.values(inputs)
        unknown = has_nan(values)
        values = torch.where(unknown, 0.0, values)
        if self.groups > 1:
            by_group = values.view(len(values), self.groups, -1)
            best = by_group.topk(self.group_top, dim=-1).values.sum(-1)
            kept = torch.zeros_like(best, dtype=torch.bool)
            kept.scatter_(1, best_first(best, self.kept_groups), True)
            by_group = torch.where(kept[:, :, None], by_group, -torch.inf)
            values = by_group.reshape(len(values), -1)
        ids = best_first(values, self.top_k)
        return (torch.where(unknown, torch.arange(self.top_k), ids),)

    def attributes(self) -> str:
        """What decides the choice."""
        groups = f" groups={self.groups}/{self.kept_groups}/{self.group_top}"
        return f"top={self.top_k} {self.scoring}{groups if self.groups > 1 else ''}"
