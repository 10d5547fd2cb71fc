"""Owns quantisation at load time: scales and codes of a block of rows, in float32 throughout."""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from ..artifact.manifest import Packed

_SMALLEST = 1e-12
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Parts:
    """Rows of a matrix in a format: codes uint8 [n, K]; scale and zero as they are stored on the
    device, [scale rows, groups] and [n, groups]; factor float32 [n]."""

    codes: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor | None = None
    factor: torch.Tensor | None = None


def needs_amax(packed: Packed) -> bool:
    """Whether a scale depends on the whole matrix, so that it is read twice."""
    return packed.scale_rows == 0 or packed.factor


def quantise_rows(packed: Packed, rows: torch.Tensor, amax: float) -> Parts:
    """Quantise float rows [n, K], whole blocks of scales; `amax` is that of the whole matrix."""
    rows = rows.float()
    blocks = _block_amax(packed, rows.abs(), amax)
    whole = torch.ones((), device=rows.device)
    if packed.factor and amax > 0:
        whole = torch.tensor(amax, device=rows.device) / 2688
    held = _scales(packed, blocks, whole)
    full = _over_rows(packed, held, len(rows))
    full = full.repeat_interleave(packed.group or packed.cols, dim=1)[:, : packed.cols]
    scaled = rows / (full * whole if packed.factor else full)
    factor = whole.repeat(len(rows)) if packed.factor else None
    zero = None
    if packed.zero:
        offset = 1 << (packed.bits - 1)
        zero = torch.full((len(rows), packed.groups), offset, dtype=torch.uint8, device=rows.device)
    return Parts(_codes(packed, scaled), stored_scales(packed, held), zero, factor)


def stored_scales(packed: Packed, held: torch.Tensor) -> torch.Tensor:
    """Return scales as they are stored on the device; 8-bit types as uint8."""
    if packed.scale == "e8m0":
        return (torch.frexp(held).exponent + 126).to(torch.uint8)
    if packed.scale == "e4m3":
        return held.to(torch.float8_e4m3fn).view(torch.uint8)
    return held.to(_TYPES[packed.scale])


def _over_rows(packed: Packed, scale: torch.Tensor, n: int) -> torch.Tensor:
    return scale.repeat_interleave(packed.scale_rows or n, dim=0)[:n]


def _block_amax(packed: Packed, size: torch.Tensor, amax: float) -> torch.Tensor:
    if packed.scale_rows == 0:
        return torch.full((1, 1), amax, device=size.device)
    rows, group = packed.scale_rows, packed.group or packed.cols
    filled = pad(size, (0, -size.shape[1] % group, 0, -size.shape[0] % rows))
    return filled.view(len(filled) // rows, rows, -1, group).amax(dim=(1, 3))


def _scales(packed: Packed, amax: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return the scales that the format holds, as float32; those of zeros are not zero."""
    if packed.scale == "e8m0":
        scale = _powers(packed, amax)
    elif packed.scale == "e4m3":
        wanted = (amax / 6 / whole).clamp(2.0**-9, 448.0)
        scale = torch.where(amax > 0, wanted, 1.0).to(torch.float8_e4m3fn).float()
    elif packed.code == "e4m3":
        scale = amax.clamp(min=_SMALLEST if packed.scale_rows != 1 else 1 / 512) / 448
    else:
        scale = torch.where(amax > 0, amax / ((1 << (packed.bits - 1)) - 0.5), 1.0)
        scale = scale.to(_TYPES[packed.scale]).float()
    return torch.where(scale > 0, scale, 1.0)


def _powers(packed: Packed, amax: torch.Tensor) -> torch.Tensor:
    """MXFP8 never saturates; MXFP4 rounds the exponent up from 1.75 on."""
    if packed.code == "e4m3":
        mantissa, exponent = torch.frexp(amax / 448)
        power = exponent - (mantissa == 0.5).to(exponent.dtype)
    else:
        bits = (amax.view(torch.int32) + 0x200000) & 0x7F800000
        power = (bits >> 23) - 129
    power = torch.where(amax > 0, power.clamp(-127, 127), 0)
    return torch.ldexp(torch.ones_like(amax), power)


def _codes(packed: Packed, scaled: torch.Tensor) -> torch.Tensor:
    """Return the nearest code points, ties to even, saturating."""
    if packed.code == "e4m3":
        return scaled.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    if packed.code == "e2m1":
        size, code = scaled.abs(), torch.zeros_like(scaled, dtype=torch.uint8)
        for low, middle in enumerate(_MIDDLES):
            code += size > middle if low % 2 == 0 else size >= middle
        return code | (torch.signbit(scaled).to(torch.uint8) << 3)
    half = 1 << (packed.bits - 1)
    return (scaled.round().clamp(-half, half - 1) + half).to(torch.uint8)
