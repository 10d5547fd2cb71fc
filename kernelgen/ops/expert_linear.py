"""Owns the product of rows with the matrices of the experts that each has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import INT32, DType
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


def distinct_experts(tokens: int, experts: int, top_k: int) -> float:
    """How many of `experts` are chosen by anyone, each token choosing `top_k` evenly at random."""
    return experts * (1.0 - (1.0 - min(1.0, top_k / experts)) ** tokens)


@dataclass(frozen=True)
class ExpertLinear(Op):
    """`y[t, j, n] = Σ_k x[t, (j,) k]·w[ids[t, j], n, k]`, accumulated in float32, rounded once.

    Inputs: x `[T, K]` (one row for all experts of a token) or `[T, top_k, K]` (one for each), the
    stack of matrices `[E, N, K]`, ids `[T, top_k]`. An id outside the stack, such as −1 for an
    expert of another rank, gives zeros.
    """

    dtype: DType
    kind: ClassVar[str] = "expert_linear"
    traits: ClassVar[Trait] = Trait.EXPERTS

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """`[T, top_k, N]`; raises ValueError when rows, ids and stack do not fit."""
        x, stack, ids = inputs
        if len(stack.shape) != 3 or stack.leading or ids.dtype != INT32 or len(ids.shape) != 2:
            raise ValueError(f"expert_linear: {ids} do not choose among the stack {stack}")
        rows = (ids.shape[0],) if len(x.shape) == 2 else ids.shape
        if x.shape != (*rows, stack.shape[2]):
            raise ValueError(f"expert_linear: {x} does not fit {ids} and the stack {stack}")
        return (Type((*ids.shape, stack.shape[1]), self.dtype),)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Two for each weight of each chosen expert."""
        _, stack, ids = inputs
        return 2 * ids.elements(sizes) * sizes.of(stack.shape[1]) * stack.row_width

    def read_bytes(self, index: int, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Of the stack the matrices that anybody chooses: an expected number."""
        if index != 1:
            return inputs[index].size_bytes(sizes)
        experts = sizes.of(inputs[1].shape[0])
        tokens = inputs[2].elements(sizes) // inputs[2].row_width
        chosen = distinct_experts(tokens, experts, inputs[2].row_width)
        return int(inputs[1].size_bytes(sizes) * chosen / experts)

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """One expert after the other, in the precision of the inputs."""
        x, stack, ids = inputs
        rows = x[:, None, :].expand(*ids.shape, -1) if x.ndim == 2 else x
        out = rows.new_zeros(*ids.shape, stack.shape[1])
        for expert in ids.unique().tolist():
            if 0 <= expert < len(stack):
                mine = ids == expert
                out[mine] = rows[mine] @ stack[expert].T
        return (out,)
