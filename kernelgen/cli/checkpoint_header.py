"""Owns reading names, types and shapes of a checkpoint folder's tensors, without their data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernelgen.core.errors import UsageError, quote
from kernelgen.core.files import explain_os_errors

_MOST_BYTES = 32 << 20
Header = dict[str, tuple[str, tuple[int, ...]]]


def read_headers(folder: Path) -> Header | None:
    """Tensor → (safetensors type, shape) of all files; None where there are none.

    `UsageError` for a file whose header is none. The runtime checks every byte of it again.
    """
    found: Header = {}
    files = sorted(folder.glob("*.safetensors"))
    for path in files:
        for name, value in _header(path).items():
            if name != "__metadata__":
                found[name] = _entry(path, name, value)
    return found if files else None


def _header(path: Path) -> dict[str, Any]:
    with explain_os_errors(path), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= _MOST_BYTES else b""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UsageError("has no safetensors header", where=str(path))
    return values


def _entry(path: Path, name: str, value: Any) -> tuple[str, tuple[int, ...]]:
    shape = value.get("shape") if isinstance(value, dict) else None
    tag = value.get("dtype") if isinstance(value, dict) else None
    good = isinstance(shape, list) and all(type(d) is int and d >= 0 for d in shape)
    if not good or not isinstance(tag, str):
        raise UsageError(f"tensor {quote(name)} has no type and shape", where=str(path))
    assert isinstance(shape, list)
    return tag, tuple(shape)
