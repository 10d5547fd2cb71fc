"""Owns the table of weight formats: element code, scales, zero points and native products."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kernelgen.core.dtypes import DTYPES, DType
from kernelgen.core.errors import UnsupportedError, quote
from kernelgen.formats.codes import E2M1, E4M3, INTEGERS, ElementCode
from kernelgen.formats.scales import (
    BFLOAT16_SCALE,
    E4M3_SCALE,
    E8M0_SCALE,
    FLOAT16_SCALE,
    FLOAT32_SCALE,
    ScaleType,
)

WHOLE = 0
"""as a group: all of the row (K) or, for rows, all of the matrix"""
GROUPS = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class WeightFormat(DType):
    """How a matrix `[N, K]` is stored; an element type to the graph, that only products read.

    `w[n, k] = (code − zero)·scale·factor`: one scale for `rows` rows and `group` columns, `zero` a
    whole number a group, `factor` a float32 a row (a second level of scales, `row_factor`).
    """

    code: ElementCode = field(kw_only=True)
    scale: ScaleType = field(kw_only=True)
    rows: int = field(default=1, kw_only=True)
    group: int = field(default=WHOLE, kw_only=True)
    zero: bool = field(default=False, kw_only=True)
    row_factor: bool = field(default=False, kw_only=True)
    native: tuple[int, ...] = field(default=(), kw_only=True)
    """SMs whose tensor cores multiply such codes as they are"""

    def groups(self, k: int) -> int:
        """Scale columns of a row of K elements; the last group may be short."""
        return 1 if self.group == WHOLE else -(-k // self.group)

    def scale_shape(self, n: int, k: int) -> tuple[int, int]:
        """Rows and columns of the scales."""
        return (1 if self.rows == WHOLE else -(-n // self.rows)), self.groups(k)

    def size_bytes(self, elements: int) -> int:
        """What reading so many elements moves, scales included; rows are taken to be long."""
        total = elements * self.code.stored_bits // 8
        if self.group != WHOLE:
            each = self.scale.bytes / max(self.rows, 1) + self.zero
            total += int(elements / self.group * each)
        return total


def _format(
    name: str,
    code: ElementCode,
    scale: ScaleType,
    *,
    rows: int = 1,
    group: int = WHOLE,
    zero: bool = False,
    row_factor: bool = False,
    native: tuple[int, ...] = (),
) -> WeightFormat:
    return WeightFormat(
        name,
        code.stored_bits,
        True,
        torch="uint8",
        numpy="uint8",
        cpp="uint8_t",
        safetensors="U8",
        code=code,
        scale=scale,
        rows=rows,
        group=group,
        zero=zero,
        row_factor=row_factor,
        native=native,
    )


_FP8, _BLOCK_SCALED = (89, 90, 100, 103, 120), (100, 103, 120)
FIXED: Mapping[str, WeightFormat] = MappingProxyType(
    {
        f.name: f
        for f in (
            _format("fp8_tensor", E4M3, FLOAT32_SCALE, rows=WHOLE, native=_FP8),
            _format("fp8_channel", E4M3, FLOAT32_SCALE, native=_FP8),
            _format("fp8_block128", E4M3, FLOAT32_SCALE, rows=128, group=128, native=_FP8),
            _format("mxfp8", E4M3, E8M0_SCALE, group=32, native=_BLOCK_SCALED),
            _format("mxfp4", E2M1, E8M0_SCALE, group=32, native=_BLOCK_SCALED),
            _format("nvfp4", E2M1, E4M3_SCALE, group=16, row_factor=True, native=_BLOCK_SCALED),
        )
    }
)
_INTEGER = re.compile(r"int([2-8])_(?:g([1-9]\d{1,3})|channel)(_f16)?(_zp)?")


def weight_format(name: str, *, where: str = "") -> WeightFormat:
    """The format called `name`: a fixed one, or `int4_g128`, with `_f16` for float16 scales and
    `_zp` for zero points. `UnsupportedError` lists what exists.
    """
    if name in FIXED:
        return FIXED[name]
    match = _INTEGER.fullmatch(name)
    if match is not None:
        bits, group, half, zero = match.groups()
        if group is None and not half and not zero:
            return _format(name, INTEGERS[int(bits)], FLOAT32_SCALE)
        if group is not None and int(group) in GROUPS:
            scale = FLOAT16_SCALE if half else BFLOAT16_SCALE
            code = INTEGERS[int(bits)]
            return _format(name, code, scale, group=int(group), zero=bool(zero))
    raise UnsupportedError(
        f"weight format {quote(name)} is not known", where=where, allowed=", ".join(format_names())
    )


def format_names() -> tuple[str, ...]:
    """What a user is told of the formats that exist."""
    groups = "|".join(map(str, GROUPS))
    return (*FIXED, f"int2…int8_g({groups})[_f16][_zp]", "int2…int8_channel")


def integer_format(bits: int, group: int, *, half: bool, zero: bool) -> str:
    """Name of an integer format; `group` WHOLE is one scale a row."""
    if group == WHOLE:
        return f"int{bits}_channel"
    return f"int{bits}_g{group}{'_f16' if half else ''}{'_zp' if zero else ''}"


def element_type(name: str, *, where: str = "") -> DType:
    """The plain element type or the weight format called `name`."""
    return DTYPES[name] if name in DTYPES else weight_format(name, where=where)
