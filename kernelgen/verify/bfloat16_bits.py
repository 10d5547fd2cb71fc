"""Owns bfloat16 as the interpreter keeps it: 16 bits, beside NumPy's float32."""

from __future__ import annotations

from typing import Any


def widened(bits: Any) -> Any:
    """bfloat16 bits as float32."""
    import numpy as np

    return (np.ascontiguousarray(bits).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def rounded(values: Any) -> Any:
    """float32 to bfloat16 bits, to nearest even; a NaN stays one."""
    import numpy as np

    word = np.ascontiguousarray(values).view(np.uint32)
    nearest = ((word + 0x7FFF + (word >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), nearest).astype(np.uint16)
