"""Owns packed matrices of a sweep: random ones made on the device, and the numbers they mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from kernelgen.formats import WeightFormat
from kernelgen.formats.codes import E4M3
from kernelgen.formats.device import CHUNK, RowSections, row_sections
from kernelgen.formats.format import WHOLE

Tensor = Any
_SPREAD = 0.5
"""of codes' own range: what deviation the numbers have beside the largest that a code can mean"""


def stored_bytes(kind: WeightFormat, shape: Sequence[int]) -> int:
    """What `[N, K]`, or a stack `[E, N, K]`, takes as rows."""
    *stack, n, k = shape
    return prod(stack) * row_sections(kind, n, k).bytes


def random_packed(kind: WeightFormat, shape: Sequence[int], device: str, seed: int) -> Tensor:
    """`uint8 [bytes]`: codes of every kind that is a number, scales around 1/√K of their range."""
    import torch

    *stack, n, k = shape
    made = torch.Generator(device=device).manual_seed(seed)
    return torch.cat([_random(kind, n, k, device, made) for _ in range(prod(stack))])


def meant(kind: WeightFormat, shape: Sequence[int], packed: Tensor) -> Tensor:
    """`float64` of that shape: what the codes stand for, exactly."""
    import torch

    *stack, n, k = shape
    parts = packed.view(prod(stack), -1)
    return torch.stack([_meant(kind, n, k, part) for part in parts]).view(*shape)


def _random(kind: WeightFormat, n: int, k: int, device: str, made: Any) -> Tensor:
    import torch

    at = row_sections(kind, n, k)
    whole = torch.zeros(at.bytes, dtype=torch.uint8, device=device)
    codes = whole[: n * at.row_bytes]
    if kind.code is E4M3:
        # Exponents up to 7 of 15: sums stay small, and no code is NaN.
        codes.random_(0, 64, generator=made)
        codes |= torch.empty_like(codes).random_(0, 2, generator=made) << 7
    else:
        codes.random_(0, 256, generator=made)
    scales = _scales(whole, kind, at)
    size = 1 / (k**0.5 * _SPREAD * _largest(kind))
    _fill_scales(scales, kind, size, made)
    if kind.zero:
        middle = 1 << (kind.code.stored_bits - 1)
        _zeros(whole, at, n).random_(middle - 1, middle + 2, generator=made)
    if kind.row_factor:
        _factors(whole, at, n).uniform_(size / 2, size * 2, generator=made)
    return whole


def _meant(kind: WeightFormat, n: int, k: int, packed: Tensor) -> Tensor:
    at = row_sections(kind, n, k)
    codes = _codes(kind, packed[: n * at.row_bytes].view(n, at.row_bytes))[:, :k].long()
    scale = _wide(_scale_values(_scales(packed, kind, at), kind), kind, n, k)
    if kind.zero:
        zero = _zeros(packed, at, n).double()
        values = codes.double() - _over_columns(zero, kind, k)
    else:
        values = _table(kind, packed.device)[codes]
    values *= scale
    if kind.row_factor:
        values *= _factors(packed, at, n).double()[:, None]
    return values


def _largest(kind: WeightFormat) -> float:
    """Of the codes that are made here, about."""
    if kind.code.is_integer:
        return float(1 << (kind.code.stored_bits - 1))
    return 2.0 if kind.code is E4M3 else kind.code.largest


def _codes(kind: WeightFormat, octets: Tensor) -> Tensor:
    """`[N, row_bytes]` as codes in the order of columns."""
    import torch

    if kind.code.stored_bits == 8:
        return octets
    # Code j of word w of a chunk is column 8·(j mod 4) + 2w + ⌊j / 4⌋.
    both = torch.stack([octets & 15, octets >> 4], dim=-1)
    words = both.view(len(octets), -1, 4, 2, CHUNK // 8)
    return words.permute(0, 1, 4, 2, 3).reshape(len(octets), -1)


def _table(kind: WeightFormat, device: Any) -> Tensor:
    """Code as it is stored → number; narrow integers keep their value in wider codes."""
    import torch

    stored = 1 << kind.code.stored_bits
    if not kind.code.is_integer:
        return torch.tensor(kind.code.values, dtype=torch.float64, device=device)
    return torch.arange(stored, dtype=torch.float64, device=device) - stored // 2


def _scales(whole: Tensor, kind: WeightFormat, at: RowSections) -> Tensor:
    size = at.scale_rows * at.groups * kind.scale.bytes
    return whole[at.scale : at.scale + size]


def _zeros(whole: Tensor, at: RowSections, n: int) -> Tensor:
    return whole[at.zero : at.zero + n * at.groups].view(n, at.groups)


def _factors(whole: Tensor, at: RowSections, n: int) -> Tensor:
    import torch

    return whole[at.factor : at.factor + 4 * n].view(torch.float32)


_FLOATS = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}


def _fill_scales(octets: Tensor, kind: WeightFormat, size: float, made: Any) -> None:
    """Scales between half and twice `size`; those with a factor beside them lie around 1."""
    import torch

    if kind.scale.name == "e8m0":
        middle = 127 + round(torch.tensor(size).log2().item())
        octets.random_(middle - 1, middle + 2, generator=made)
    elif kind.scale.name == "e4m3":
        octets.random_(0x30, 0x41, generator=made)  # 0.5 to 2
    else:
        scales = octets.view(getattr(torch, _FLOATS[kind.scale.name]))
        plain = torch.empty(scales.shape, device=octets.device)
        scales.copy_(plain.uniform_(size / 2, size * 2, generator=made))


def _scale_values(octets: Tensor, kind: WeightFormat) -> Tensor:
    import torch

    if kind.scale.name == "e8m0":
        return torch.ldexp(torch.ones_like(octets, dtype=torch.float64), octets.double() - 127)
    if kind.scale.name == "e4m3":
        values = torch.tensor(E4M3.values, dtype=torch.float64, device=octets.device)
        return values[octets.long()]
    return octets.view(getattr(torch, _FLOATS[kind.scale.name])).double()


def _wide(scales: Tensor, kind: WeightFormat, n: int, k: int) -> Tensor:
    """A scale for each element; those of the whole matrix are stored for each row."""
    at = row_sections(kind, n, k)
    each = 1 if kind.rows in (WHOLE, 1) else kind.rows
    rows = scales.view(at.scale_rows, at.groups).repeat_interleave(each, 0)[:n]
    return _over_columns(rows, kind, k)


def _over_columns(rows: Tensor, kind: WeightFormat, k: int) -> Tensor:
    if kind.group == WHOLE:
        return rows  # one column, broadcast
    return rows.repeat_interleave(kind.group, 1)[:, :k]
