"""Owns the checker's own packers of quantised matrices, written from docs/abi.md alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from kernelgen.formats import WeightFormat
from kernelgen.formats.device import CHUNK, PANEL, SECTION, padded_k
from kernelgen.formats.format import WHOLE
from kernelgen.formats.reference import Quantised, dequantise, over_rows, quantise
from kernelgen.formats.scales import stored_scales


def random_matrix(kind: WeightFormat, n: int, k: int, rng: np.random.Generator) -> Quantised:
    """A normal matrix of deviation 1/√k in a format; zero points and factors vary by chance."""
    matrix = (rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)
    parts = quantise(replace(kind, zero=False), matrix)
    if kind.zero:
        near = kind.code.offset + rng.integers(-1, 2, (n, kind.groups(k)))
        parts = replace(parts, zero=near.astype(np.uint8))
    if parts.factor is not None:
        parts = replace(parts, factor=parts.factor * rng.uniform(0.5, 2, n).astype(np.float32))
    return parts


def random_packed(
    kind: WeightFormat, shape: tuple[int, ...], layout: str, rng: np.random.Generator
) -> tuple[Any, Any]:
    """A random matrix `[N, K]`, or a stack `[E, N, K]`: float64 as meant, bytes as given."""
    *stack, n, k = shape
    parts = [random_matrix(kind, n, k, rng) for _ in range(math.prod(stack))]
    meant = np.stack([dequantise(kind, one) for one in parts]).reshape(shape)
    return meant, np.concatenate([PACKERS[layout](kind, one) for one in parts])


def device_codes(kind: WeightFormat, parts: Quantised) -> tuple[Any, Any]:
    """Codes and zero points as wide as they are stored on a device: integers keep their value."""
    shift = (1 << (kind.code.stored_bits - 1)) - kind.code.offset if kind.code.is_integer else 0
    if kind.zero:
        return parts.codes, parts.zero
    return parts.codes + np.uint8(shift), None


def pack_rows(kind: WeightFormat, parts: Quantised) -> Any:
    """The rows layout as bytes `[…]`: sections of codes, scales, zero points and factors."""
    n, k = parts.codes.shape
    codes, zero = device_codes(kind, parts)
    codes = np.pad(codes, ((0, 0), (0, -k % CHUNK)))
    if kind.code.stored_bits == 4:
        # Code j of word w of a chunk is column 8·(j mod 4) + 2w + ⌊j / 4⌋.
        words = codes.reshape(n, -1, 4, 4, 2).transpose(0, 1, 3, 4, 2)
        codes = words[..., ::2] | words[..., 1::2] << np.uint8(4)
    scale = parts.scale if kind.rows != WHOLE else np.repeat(parts.scale, n, axis=0)
    sections = [codes, stored_scales(scale, kind.scale), zero, parts.factor]
    octets = [b"" if s is None else np.ascontiguousarray(s).tobytes() for s in sections]
    filled = b"".join(o + b"\0" * (-len(o) % SECTION) for o in octets)
    return np.frombuffer(filled, np.uint8).copy()


def pack_panels(kind: WeightFormat, parts: Quantised) -> Any:
    """The panel layout as bytes `[panels, bytes of a panel]`."""
    n, k = parts.codes.shape
    codes, zero = device_codes(kind, parts)
    groups, whole = kind.groups(k), padded_k(kind, k)
    down = ((0, -n % PANEL), (0, 0))
    codes = np.pad(codes, (down[0], (0, whole - k)))
    panels, size = len(codes) // PANEL, kind.code.stored_bits
    scale = stored_scales(over_rows(kind, parts.scale, n), kind.scale)
    found = [_by_panel(np.pad(scale, down), panels, groups)]
    if zero is not None:
        found.append(_by_panel(np.pad(zero, down), panels, groups))
    # Element 2j of a word takes code j from below, element 2j + 1 code j of the upper half.
    each = 32 // size
    words = codes.reshape(panels, PANEL, groups, -1, each).astype(np.uint32)
    order = np.array([(e // 2 + e % 2 * each // 2) * size for e in range(each)], np.uint32)
    words = (words << order).sum(-1, dtype=np.uint32).transpose(0, 2, 3, 1)
    found.append(np.ascontiguousarray(words).view(np.uint8).reshape(panels, groups, -1))
    packed = np.concatenate(found, axis=2).reshape(panels, -1)
    if parts.factor is None:
        return packed
    factor = np.pad(parts.factor, (0, -n % PANEL)).reshape(panels, PANEL)
    return np.concatenate([packed, factor.view(np.uint8)], axis=1)


def _by_panel(columns: Any, panels: int, groups: int) -> Any:
    """`[panels·32, groups]` as bytes `[panels, groups, …]`, 32 numbers of a group side by side."""
    found = columns.reshape(panels, PANEL, groups).transpose(0, 2, 1)
    return np.ascontiguousarray(found).view(np.uint8).reshape(panels, groups, -1)


PACKERS = {"rows": pack_rows, "panel": pack_panels}
