"""Owns the element types of scales: how a stored scale is read, and which ones are no scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kernelgen.formats.codes import E4M3


@dataclass(frozen=True)
class ScaleType:
    """One element type of scales; `safetensors` are the tags under which checkpoints hold it."""

    name: str
    bytes: int
    safetensors: tuple[str, ...]


# A checkpoint may also hold a narrower type that the wider one represents exactly.
FLOAT32_SCALE = ScaleType("float32", 4, ("F32", "BF16", "F16"))
BFLOAT16_SCALE = ScaleType("bfloat16", 2, ("BF16",))
FLOAT16_SCALE = ScaleType("float16", 2, ("F16",))
E8M0_SCALE = ScaleType("e8m0", 1, ("U8", "F8_E8M0"))
E4M3_SCALE = ScaleType("e4m3", 1, ("F8_E4M3", "U8"))
SCALE_TYPES: Mapping[str, ScaleType] = MappingProxyType(
    {s.name: s for s in (FLOAT32_SCALE, BFLOAT16_SCALE, FLOAT16_SCALE, E8M0_SCALE, E4M3_SCALE)}
)


def scale_values(stored: Any, kind: ScaleType) -> Any:
    """Stored scales (NumPy; 8-bit types as uint8, bfloat16 as uint16) as float32, exactly.

    A code that is no number gives NaN: e8m0 255, e4m3 127 and 255.
    """
    import numpy as np

    if kind.name == "e8m0":
        exponent = np.minimum(stored.astype(np.int32) - 127, 127)
        return np.where(stored == 255, np.float32(np.nan), np.ldexp(np.float32(1), exponent))
    if kind.name == "e4m3":
        return np.array(E4M3.values, np.float32)[stored]
    if kind.name == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def stored_scales(values: Any, kind: ScaleType) -> Any:
    """The inverse of `scale_values` for numbers that the type holds; others round to nearest."""
    import numpy as np

    values = np.asarray(values, np.float32)
    if kind.name == "e8m0":
        return (np.frexp(values)[1] + 126).astype(np.uint8)
    if kind.name == "e4m3":
        return nearest_e4m3(values)
    if kind.name == "bfloat16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype(np.float16 if kind.name == "float16" else np.float32)


def nearest_e4m3(values: Any) -> Any:
    """Codes of the nearest E4M3 numbers, ties to even, saturating at ±448; uint8."""
    import numpy as np

    x = np.asarray(values, np.float32)
    size = np.minimum(np.abs(x), np.float32(E4M3.largest))
    exponent = np.maximum(np.frexp(size)[1] - 1, -6)
    step = np.ldexp(np.float32(1), exponent - 3)
    rounded = np.rint(size / step) * step
    table = np.array(E4M3.values[:127], np.float32)
    return (np.searchsorted(table, rounded) | (np.signbit(x) << 7)).astype(np.uint8)
