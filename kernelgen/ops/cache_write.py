"""Owns the cache insert: keys and values of new tokens go to their pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class CacheWrite(Op):
    """State after keys `[T, kv_heads, D]` and values of the step's tokens have been stored;
    padding rows store nothing.

    Inputs: state, keys, values, rows (`int32 [T]`: request row of each token), and with `scaled`
    the scales of keys and of values (`float32 [2]`): what is stored is divided by its scale, and
    kept within ±448 and rounded where the state is float8.
    """

    scaled: bool = False
    kind: ClassVar[str] = "cache_write"
    traits: ClassVar[Trait] = Trait.STATE_WRITE

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """The state's own type; raises ValueError when keys or values do not fit it."""
        state, keys, values = inputs[:3]
        if keys.shape[1:] != state.shape or values.shape[1:] != state.shape:
            raise ValueError(
                f"cache_write: keys {keys}, values {values} do not fit the cache {state}"
            )
        return (state,)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """It only moves bytes."""
        return 0

    def read_bytes(self, index: int, inputs: Sequence[Type], sizes: Sizes) -> int:
        """The old state is not read."""
        return 0 if index == 0 else inputs[index].size_bytes(sizes)

    def write_bytes(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Keys and values of the step's tokens, in the cache's dtype."""
        state, keys = inputs[0], inputs[1]
        return 2 * keys.elements(sizes) * state.dtype.bits // 8

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """A new dense cache with the rows stored at their positions."""
        state, keys, values = inputs[:3]
        if self.scaled:
            keys, values = (narrow(x / s) for x, s in zip((keys, values), inputs[4], strict=True))
        out = state.copy()
        for t, (row, position) in enumerate(
            zip(step.request.tolist(), step.positions.tolist(), strict=True)
        ):
            if row >= 0:
                out.keys[row][position] = keys[t]
                out.values[row][position] = values[t]
        return (out,)


def narrow(x: Any) -> Any:
    """The nearest float8 (e4m3) numbers, in the precision of `x`; beyond ±448 the largest."""
    import torch

    # Twice rounded (float32 first) is what kernels do too.
    return x.float().clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)
