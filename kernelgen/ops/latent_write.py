"""Owns the insert of latent rows: one row a token, shared by all heads, goes to its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class LatentWrite(Op):
    """State after the rows of the step's tokens have been stored; padding rows store nothing.

    Inputs: state `[R + P]` a token, the latent `[T, R]`, what is beside it `[T, P]`, rows.
    """

    kind: ClassVar[str] = "latent_write"
    traits: ClassVar[Trait] = Trait.STATE_WRITE

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """The state's own type; raises ValueError when the parts do not fill its row."""
        state, latent, beside, _rows = inputs
        if len(latent.shape) != 2 or len(beside.shape) != 2 or len(state.shape) != 1:
            raise ValueError(f"latent_write: {latent} and {beside} are not the rows of {state}")
        if latent.row_width + beside.row_width != state.row_width:
            raise ValueError(f"latent_write: {latent} and {beside} do not fill {state}")
        return (state,)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """It only moves bytes."""
        return 0

    def read_bytes(self, index: int, inputs: Sequence[Type], sizes: Sizes) -> int:
        """The old state is not read."""
        return 0 if index == 0 else inputs[index].size_bytes(sizes)

    def write_bytes(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """The rows of the step's tokens, in the cache's dtype."""
        return sizes.tokens * inputs[0].size_bytes(sizes)

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """A new dense cache with the rows stored at their positions."""
        import torch

        state, latent, beside, _rows = inputs
        out = state.copy()
        for t, (row, position) in enumerate(
            zip(step.request.tolist(), step.positions.tolist(), strict=True)
        ):
            if row >= 0:
                out.rows[row][position] = torch.cat([latent[t], beside[t]])
        return (out,)
