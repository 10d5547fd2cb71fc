"""Owns the map from experts of the model to experts of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import INT32
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type


@dataclass(frozen=True)
class MapExperts(Op):
    """`local[t, j] = map[ids[t, j]]`: the number that an expert has on this rank, −1 for one that
    another rank serves. Inputs: ids `[T, k]`, map `int32 [E]` (see `ExpertMap.local`)."""

    kind: ClassVar[str] = "map_experts"
    traits: ClassVar[Trait] = Trait.ROUTE

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """The shape of the ids."""
        ids, table = inputs
        if ids.dtype != INT32 or table.dtype != INT32 or len(table.shape) != 1:
            raise ValueError(f"map_experts: {table} does not map {ids}")
        return (ids,)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """It only moves numbers."""
        return 0

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """Plain indexing."""
        ids, table = inputs
        return (table.to(ids.dtype)[ids],)
