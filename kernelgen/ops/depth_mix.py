"""Owns mixing over depth: rows of several sources become one, by weights that they decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import DType
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class DepthMix(Op):
    """`y = Σ_s softmax_s(score_s)·x_s`, `score_s = Σ_i x_s[i]·norm[i]·probe[i] / rms(x_s)`.

    Inputs: one or more sources `[T, D]`, then norm and probe `[D]`; `rms(x)` is the root of
    `mean(x²) + eps`. What is mixed are the sources themselves. In float32, rounded once.
    """

    eps: float
    dtype: DType
    kind: ClassVar[str] = "depth_mix"
    traits: ClassVar[Trait] = Trait.ROW_MIX

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """A row like those of each source; raises ValueError where they differ."""
        *sources, norm, probe = inputs
        if not sources or any(s.shape != sources[0].shape for s in sources):
            raise ValueError(f"depth_mix: sources differ: {', '.join(map(str, sources))}")
        width = sources[0].shape[-1:]
        if len(sources[0].shape) != 2 or norm.shape != width or probe.shape != width:
            raise ValueError(f"depth_mix: {sources[0]} does not fit norm {norm} and probe {probe}")
        return (Type(sources[0].shape, self.dtype),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Two sums of products and one of weights for each element of a source."""
        return 6 * (len(inputs) - 2) * inputs[0].elements(sizes)

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """All sources side by side."""
        import torch

        *sources, norm, probe = inputs
        rows = torch.stack(list(sources), 1)
        length = torch.rsqrt(rows.square().mean(-1) + self.eps)
        weights = torch.softmax((rows @ (norm * probe)) * length, -1)
        return ((weights[..., None] * rows).sum(1),)

    def attributes(self) -> str:
        """What is added to a mean square."""
        return f"{self.eps!r}"
