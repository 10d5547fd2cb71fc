"""Owns frames: how a tile of rows is addressed and masked while a tile program runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelgen.codegen.triton.expressions import widened
from kernelgen.core.dtypes import DType


@dataclass(frozen=True)
class Mask:
    """Which elements exist: all without `text`, and all unless the constant `only_if` holds."""

    text: str = ""
    only_if: str = ""

    def load(self, pointer: str, other: str = "0.0") -> str:
        """A load of what exists, `other` elsewhere."""
        if not self.text:
            return f"tl.load({pointer})"
        masked = f"tl.load({pointer}, mask={self.text}, other={other})"
        return f"{masked} if {self.only_if} else tl.load({pointer})" if self.only_if else masked

    def store(self, pointer: str, value: str) -> str:
        """A store of what exists."""
        if not self.text:
            return f"tl.store({pointer}, {value})"
        mask = f"{self.text} if {self.only_if} else None" if self.only_if else self.text
        return f"tl.store({pointer}, {value}, mask={mask})"


@dataclass(frozen=True)
class Frame:
    """Texts of row, head and column numbers that broadcast, with the masks of each shape."""

    row: str
    column: str
    tile: Mask = Mask()
    """of `[rows, columns]`"""
    vector: Mask = Mask()
    """of one row of columns"""
    number: Mask = Mask()
    """of one number for each row"""
    head: str = ""
    """number of the head; empty where rows are whole"""

    def moved(self, column: str) -> Frame:
        """The same tile at other columns, which exist where its own do."""
        return replace(self, column=column)


def address(*terms: str) -> str:
    """A pointer from a base and offsets; terms that are zero vanish."""
    return " + ".join(t for t in terms if t not in ("", "0"))


def load_as_float(mask: Mask, pointer: str, dtype: DType, other: str = "0.0") -> str:
    """A load as float32."""
    text = mask.load(pointer, other)
    if mask.only_if:
        text = f"({text})"
    return widened(text, dtype)
