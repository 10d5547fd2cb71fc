"""Owns the short causal convolution: each column of a row mixed with the rows just before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import DType
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type
from kernelgen.ops.step import request_runs


@dataclass(frozen=True)
class ShortConv(Op):
    """`y[t, c] = Σ_j w[c, j]·x[t − W + 1 + j, c]` over rows of the token's own request.

    Rows before the request's first token are zeros; those before the step are in the state, which
    holds the last W − 1 of them. Inputs: x `[T, C]`, w `[C, W]`, state `[W − 1, C]`, rows. Outputs:
    y, and the state after the step's tokens. Summed in float32, j ascending, rounded once.
    """

    dtype: DType
    kind: ClassVar[str] = "short_conv"
    traits: ClassVar[Trait] = Trait.SCAN | Trait.STATE_READ | Trait.STATE_WRITE

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """y like x, and the state; raises ValueError when taps, columns and state do not fit."""
        x, weight, state, _rows = inputs
        if len(x.shape) != 2 or len(weight.shape) != 2 or weight.shape[0] != x.shape[1]:
            raise ValueError(f"short_conv: {x} does not fit the taps {weight}")
        if weight.row_width < 2 or state.shape != (weight.row_width - 1, x.shape[1]):
            raise ValueError(f"short_conv: the state {state} is not what {weight} reaches back")
        return (Type(x.shape, self.dtype), state)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Two for each tap of each element."""
        return 2 * inputs[1].row_width * inputs[0].elements(sizes)

    def read_bytes(self, index: int, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Of the state: one for each request."""
        size = inputs[index].size_bytes(sizes)
        return sizes.rows * size if index == 2 else size

    def write_bytes(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """The result, and the state of each request."""
        made, state = self.infer(inputs)
        return made.size_bytes(sizes) + sizes.rows * state.size_bytes(sizes)

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """Tap by tap over the rows of each request, the saved ones in front."""
        import torch

        x, weight, state, _rows = inputs
        out, after = torch.zeros_like(x), state.copy()
        for run in request_runs(step):
            saved = state.values[run.request].to(x.dtype)
            before = saved if run.position else torch.zeros_like(saved)
            rows = torch.cat([before, x[run.tokens]])
            taps = [rows[j : j + run.count] * weight[:, j] for j in range(weight.shape[1])]
            out[run.tokens] = torch.stack(taps).sum(0)
            after.values[run.request] = rows[run.count :]
        return (out, after)
