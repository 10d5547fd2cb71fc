"""Owns what the text of a product needs to know of packed matrices."""

from __future__ import annotations

import struct
from typing import Any

from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.triton.product import Orientation, product_context
from kernelgen.formats import WeightFormat
from kernelgen.formats.codes import E2M1
from kernelgen.formats.device import row_sections
from kernelgen.formats.format import WHOLE
from kernelgen.planner.network import Region


def packed_context(
    region: Region,
    roles: LinearRoles,
    how: Orientation,
    args: ArgsLayout,
    steps: int = 1,
    ahead: int = 1,
) -> dict[str, Any]:
    """What products of packed matrices need: a product's context, the format, where parts lie.

    `steps`: runs of 64 bytes that a warp of `sliced_packed` takes of each row before the next;
    `ahead`: such steps whose codes are asked for before the first of them is multiplied.
    """
    kind = region.value(roles.groups[0].weights[0]).type.dtype
    assert isinstance(kind, WeightFormat)
    context = product_context(region, roles, how, args)
    for section in context["sections"]:
        for group in section["groups"]:
            lies = row_sections(kind, group["n"], roles.k)
            group["packed"] = {"scale": lies.scale, "zero": lies.zero, "factor": lies.factor}
    context["packed"] = format_context(kind, roles.k) | {"steps": steps, "ahead": ahead}
    return context


def stack_context(kind: WeightFormat, n: int, k: int) -> dict[str, Any]:
    """What kernels need of a stack of packed matrices `[n, k]`, one after the other."""
    lies = row_sections(kind, n, k)
    places = {"scale_at": lies.scale, "zero_at": lies.zero, "factor_at": lies.factor}
    return format_context(kind, k) | places | {"matrix_bytes": lies.bytes}


def format_context(kind: WeightFormat, k: int) -> dict[str, Any]:
    """The format of rows of `k` elements, and how kernels walk through them."""
    lies = row_sections(kind, 1, k)
    bits = kind.code.stored_bits
    return {
        "code": kind.code.name if not kind.code.is_integer else "int",
        "scale": kind.scale.name,
        "group": kind.group,
        "groups": lies.groups,
        "scale_rows": max(kind.rows, 1),
        "row_bytes": lies.row_bytes,
        "halves": 8 // bits,
        "mask": (1 << bits) - 1,
        "offset": f"{1 << (bits - 1)}.0",
        "zero": kind.zero,
        "factor": kind.row_factor,
        **_walk(kind),
        **_lanes(kind),
    }


def _walk(kind: WeightFormat) -> dict[str, Any]:
    """How kernels walk through the 16 bytes of a chunk.

    `units`: four words of eight codes, or 16 bytes, whose columns start `apart`; `offsets`: of the
    codes of a unit, in columns;
    `elements`: which of them share a scale, in `parts` sums a chunk. Integers become 1 + q / `span`
    once their bits (`mantissa`) are put into a float's.
    """
    bits = kind.code.stored_bits
    count = 8 if bits == 4 else 1
    offsets = [8 * (j % 4) + j // 4 for j in range(count)]
    parts = 2 if bits == 4 and kind.group == 16 else 1
    return {
        "units": 4 if bits == 4 else 16,
        "apart": 2 if bits == 4 else 1,
        "offsets": offsets,
        "elements": [[j for j in range(count) if j % 4 * parts // 4 == p] for p in range(parts)],
        "parts": parts,
        "span": 1 << bits,
        "mantissa": hex(((1 << bits) - 1) << (23 - bits)),
        "shift": 23 - bits,
    }


def _lanes(kind: WeightFormat) -> dict[str, Any]:
    """How `sliced_packed` makes numbers of codes and where scales meet them.

    `deep`: the 64 bytes that a warp takes of a row have one scale, which waits for their sum;
    `on_codes`: scales meet codes. `hold`: codes beside each other in K that a lane gives to a
    product, as the compiler wants it: with another number registers would move. `lift`: what the
    bits of a code are less than it; `left_over`: what is left of that for the sums, or the scale.
    """
    bits = kind.code.stored_bits
    chunk, whole = 128 // bits, kind.code.is_integer
    deep = kind.group != WHOLE and kind.group % (4 * chunk) == 0
    on_codes = kind.group != WHOLE and not deep
    lifts = {"e2m1": 2.0**126, "e4m3": 2.0**120}
    left = {"e8m0": 2.0**6, "e4m3": 2.0**7}[kind.scale.name] if kind.code is E2M1 else 1.0
    parts = 2 if bits == 4 and kind.group == 16 else 1
    reads = [{"columns": [8 * p, 8 * p + 8], "pair": p, "part": p * parts // 4} for p in (0, 2)]
    return {
        "chunk": chunk,
        "deep": deep,
        "on_codes": on_codes,
        "hold": 4,
        "lift": lifts.get(kind.code.name, ""),
        "left_over": 64.0 if whole else left,
        "pair": _pair,
        "nothing": _pair(-0.0),
        "offset_pair": _pair(-(2.0 ** (bits - 1)) / 64),
        "reads": reads[: 8 // bits],
    }


def _pair(value: float) -> str:
    """Two equal bfloat16 as the int32 that holds them."""
    (half,) = struct.unpack(">H", struct.pack(">f", value)[:2])
    word = half << 16 | half
    return str(word - (1 << 32) if word >> 31 else word)
