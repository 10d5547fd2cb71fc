"""Owns the declaration that a device may use what a sibling of its SM has measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernelgen.core.decode import from_json
from kernelgen.core.errors import KernelgenError, UsageError, quote
from kernelgen.core.jsonio import load_file

FILE_NAME = "INHERITS.json"
_MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class Inheritance:
    """Content of `<sm>/<device>/INHERITS.json`."""

    schema: Literal[1]
    source: str
    """the sibling: a device of the same SM"""
    why: str
    """what makes its tiles fit here, in words"""

    def __post_init__(self) -> None:
        if not self.source or not self.why or "/" in self.source or "\n" in self.why:
            raise UsageError(
                f"source {quote(self.source)}, why {quote(self.why)}",
                allowed="a device's name, and one line of text",
            )


def read_inheritance(
    folder: Path, sm: str, device: str
) -> tuple[Inheritance | None, tuple[str, ...]]:
    """What a device declares, or None, with one line for what is wrong with its file."""
    path = folder / sm / device / FILE_NAME
    if not path.is_file():
        return None, ()
    try:
        data = load_file(path, max_bytes=_MAX_BYTES)
        found = from_json(Inheritance, data, source=str(path))
    except KernelgenError as error:
        return None, (" ".join(str(error).split()),)
    if found.source == device:
        return None, (f"{path}: source {quote(device)} is the device itself",)
    return found, ()
