"""Owns what formats mean, in NumPy: dequantise and quantise, for checks and as the definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelgen.formats.codes import E2M1, E4M3
from kernelgen.formats.format import WHOLE, WeightFormat
from kernelgen.formats.scales import nearest_e4m3, scale_values, stored_scales

Floats = npt.NDArray[np.float32]
_SMALLEST = np.float32(1e-12)  # amax of a block of zeros: its scale must not be zero


@dataclass(frozen=True)
class Quantised:
    """A matrix `[N, K]` in parts, unpacked: codes, and scales that are exact in the format."""

    codes: npt.NDArray[np.uint8]
    """`[N, K]`"""
    scale: Floats
    """as `WeightFormat.scale_shape` says"""
    zero: npt.NDArray[np.uint8] | None = None
    """`[N, groups]`: the code that stands for zero"""
    factor: Floats | None = None
    """`[N]`"""


def dequantise(kind: WeightFormat, parts: Quantised) -> npt.NDArray[np.float64]:
    """The matrix that the parts stand for, exactly, `[N, K]`."""
    n, k = parts.codes.shape
    values: Any = np.array(kind.code.values, np.float64)[parts.codes]
    if parts.zero is not None:
        values = parts.codes - over_columns(kind, parts.zero.astype(np.float64), k)
    scale = over_columns(kind, over_rows(kind, parts.scale.astype(np.float64), n), k)
    matrix: npt.NDArray[np.float64] = values * scale
    return matrix if parts.factor is None else matrix * parts.factor.astype(np.float64)[:, None]


def over_rows(kind: WeightFormat, scale: Any, n: int) -> Any:
    """One row of scales for each of N rows."""
    if kind.rows == WHOLE:
        return np.repeat(scale, n, axis=0)
    return np.repeat(scale, kind.rows, axis=0)[:n]


def over_columns(kind: WeightFormat, scale: Any, k: int) -> Any:
    """One column for each of K columns."""
    return np.repeat(scale, k if kind.group == WHOLE else kind.group, axis=1)[:, :k]


def quantise(kind: WeightFormat, matrix: Floats) -> Quantised:
    """Round-to-nearest quantisation of `[N, K]`; zero points are never chosen here.

    All arithmetic is float32, so that any other implementation can give the same bits.
    """
    assert not kind.zero, "formats with zero points are only read"
    n, k = matrix.shape
    amax = _block_amax(kind, np.abs(matrix))
    whole, factor = np.float32(1), None
    if kind.row_factor:
        if amax.max(initial=0) > 0:
            whole = np.float32(amax.max() / np.float32(2688))
        factor = np.full(n, whole, np.float32)
    scale = _scales(kind, amax, whole)
    full = over_columns(kind, over_rows(kind, scale, n), k)
    scaled = matrix / (full if factor is None else full * factor[:, None])
    return Quantised(_codes(kind, scaled), scale, None, factor)


def _block_amax(kind: WeightFormat, size: Floats) -> Floats:
    """Largest magnitude of each block that shares a scale."""
    n, k = size.shape
    rows, group = (
        (n if kind.rows == WHOLE else kind.rows),
        (k if kind.group == WHOLE else kind.group),
    )
    padded = np.pad(size, ((0, -n % rows), (0, -k % group)))
    blocks = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // group, group)
    largest: Floats = blocks.max(axis=(1, 3))
    return largest


def _scales(kind: WeightFormat, amax: Floats, whole: np.float32) -> Floats:
    """The scale of a block from its largest magnitude, as the format stores it; `whole` is the
    factor of the matrix."""
    if kind.scale.name == "e8m0":
        scale: Any = _powers(kind, amax)
    elif kind.scale.name == "e4m3":
        wanted = np.clip(amax / np.float32(6) / whole, np.float32(2.0**-9), np.float32(448))
        scale = np.where(amax > 0, wanted, np.float32(1))
    elif kind.code is E4M3:
        floor = _SMALLEST if kind.rows != 1 else np.float32(1 / 512)
        scale = np.maximum(amax, floor) / np.float32(448)
    else:
        scale = np.where(amax > 0, amax / np.float32(kind.code.offset - 0.5), np.float32(1))
    held: Floats = scale_values(stored_scales(scale, kind.scale), kind.scale)
    return np.where(held > 0, held, np.float32(1))


def _powers(kind: WeightFormat, amax: Floats) -> Floats:
    """Powers of two: MXFP8 never saturates; MXFP4 rounds the exponent up from 1.75 on."""
    if kind.code is E4M3:
        mantissa, exponent = np.frexp(amax / np.float32(448))
        power = exponent - (mantissa == 0.5)
    else:
        bits = (amax.view(np.uint32) + np.uint32(0x200000)) & np.uint32(0x7F800000)
        power = (bits >> 23).astype(np.int32) - 127 - 2
    power = np.where(amax > 0, np.clip(power, -127, 127), 0)
    powers: Floats = np.ldexp(np.float32(1), power).astype(np.float32)
    return powers


def _codes(kind: WeightFormat, scaled: Floats) -> npt.NDArray[np.uint8]:
    """The nearest code points, ties to even, saturating."""
    if kind.code is E4M3:
        found: npt.NDArray[np.uint8] = nearest_e4m3(scaled)
        return found
    if kind.code is E2M1:
        return _nearest_e2m1(scaled)
    half = kind.code.offset
    whole = np.clip(np.rint(scaled), -half, half - 1) + half
    return whole.astype(np.uint8)


def _nearest_e2m1(scaled: Floats) -> npt.NDArray[np.uint8]:
    """Between two codes the half-way point belongs to the even one."""
    size = np.abs(scaled)
    code = np.zeros(scaled.shape, np.uint8)
    for low in range(7):
        middle = np.float32((E2M1.values[low] + E2M1.values[low + 1]) / 2)
        code += (size > middle) if low % 2 == 0 else (size >= middle)
    return code | (np.signbit(scaled) << 3).astype(np.uint8)
