"""Owns the sizes of packed matrices on a device: panels for the CPU, rows for a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.formats.format import WHOLE, WeightFormat

PANEL = 32
CHUNK = 32
"""columns whose nibbles lie together in the rows layout, in four words: pair p of word w (codes p
and p + 4) is columns 8p + 2w and the next, so that one mask takes both to halves of a word"""
SECTION = 256
"""bytes that the sections of the rows layout start at multiples of"""
_FACTOR_BYTES = 4


def padded_k(kind: WeightFormat, k: int) -> int:
    """K filled up to whole groups, or to whole words where a row is one group."""
    unit = 32 // kind.code.stored_bits if kind.group == WHOLE else kind.group
    return -(-k // unit) * unit


def panel_bytes(kind: WeightFormat, k: int) -> int:
    """One panel of 32 outputs: for each group scales, zero points and words, then factors."""
    codes = PANEL * padded_k(kind, k) * kind.code.stored_bits // 8
    scales = kind.groups(k) * PANEL * (kind.scale.bytes + kind.zero)
    return scales + codes + (PANEL * _FACTOR_BYTES if kind.row_factor else 0)


@dataclass(frozen=True)
class RowSections:
    """Byte offsets of the sections of a packed matrix as rows, and the bytes of all.

    Codes `[N, row_bytes]`; scales `[scale rows, groups]`; zero points `[N, groups]`; factors `[N]`.
    """

    row_bytes: int
    scale_rows: int
    groups: int
    scale: int
    zero: int
    factor: int
    bytes: int


def row_sections(kind: WeightFormat, n: int, k: int) -> RowSections:
    """Where everything of `[N, K]` lies. K is padded to whole chunks, and scales that hold for the
    whole matrix are repeated for each row."""
    row_bytes = -(-k // CHUNK) * CHUNK * kind.code.stored_bits // 8
    rows = n if kind.rows <= 1 else -(-n // kind.rows)
    groups = kind.groups(k)
    scale = _aligned(n * row_bytes)
    zero = scale + _aligned(rows * groups * kind.scale.bytes)
    factor = zero + _aligned(n * groups * kind.zero)
    total = factor + _aligned(n * _FACTOR_BYTES * kind.row_factor)
    return RowSections(row_bytes, rows, groups, scale, zero, factor, total)


def _aligned(size: int) -> int:
    return -(-size // SECTION) * SECTION
