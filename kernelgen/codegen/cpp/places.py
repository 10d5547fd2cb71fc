"""Owns where values lie while a C++ row program runs: typed memory, a local float array, or one
number a row."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.codegen.cpp.expressions import rounded, stored
from kernelgen.core.dtypes import FLOAT32
from kernelgen.ir.types import Type


@dataclass(frozen=True)
class Place:
    """One value. `text` is a C++ pointer or array (a plain variable for a number without heads)."""

    text: str
    type: Type
    kind: str = "tensor"
    """`tensor`, `local` (floats that hold rounded values), `number`, or `packed` (a projection's
    prepared row)"""
    heads: bool = False
    """whether `[head]` or `head * D` has to be added"""
    whole: bool = True
    """whether all heads of the row lie there, not just the current one"""

    def _at(self, index: str, head: str) -> str:
        return f"{head} * {self.type.row_width} + {index}" if self.heads else index

    def load(self, index: str, head: str) -> str:
        """The float at `index` of the row."""
        if self.kind == "number":
            return f"{self.text}[{head}]" if self.heads else self.text
        text = f"{self.text}[{self._at(index, head)}]"
        plain = self.kind == "local" or self.type.dtype == FLOAT32
        return text if plain else f"kg::to_float({text})"

    def store(self, index: str, head: str, value: str) -> str:
        """The statement that ends an op: rounds to the value's dtype and keeps it."""
        dtype = self.type.dtype
        text = stored(value, dtype) if self.kind == "tensor" else rounded(value, dtype)
        if self.kind == "packed":
            text = f"kg::from_float<Element>({text})"
        return f"{self.text}[{self._at(index, head)}] = {text};"
