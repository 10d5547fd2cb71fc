"""Owns what the text of a product needs to know of packed matrices."""

from __future__ import annotations

from typing import Any

from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.triton.product import Orientation, product_context
from kernelgen.formats import WeightFormat
from kernelgen.formats.device import row_sections
from kernelgen.planner.network import Region


def packed_context(
    region: Region, roles: LinearRoles, how: Orientation, args: ArgsLayout
) -> dict[str, Any]:
    """What `packed` and `gemv_packed` need: a product's context, the format, where parts lie."""
    kind = region.value(roles.groups[0].weights[0]).type.dtype
    assert isinstance(kind, WeightFormat)
    context = product_context(region, roles, how, args)
    for section in context["sections"]:
        for group in section["groups"]:
            lies = row_sections(kind, group["n"], roles.k)
            group["packed"] = {"scale": lies.scale, "zero": lies.zero, "factor": lies.factor}
    lies = row_sections(kind, 1, roles.k)
    bits = kind.code.stored_bits
    context["packed"] = {
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
        **_by_words(kind),
    }
    return context


def _by_words(kind: WeightFormat) -> dict[str, Any]:
    """How a thread walks through the 16 bytes of a chunk.

    `units`: four words, or 16 numbers where the hardware widens them; `offsets`: of the elements of
    a unit, in columns; `elements`: which of them are summed together, in `parts` sums a chunk.
    Integers become 1 + q / `span` by putting their bits (`mantissa`) into a float's.
    """
    bits = kind.code.stored_bits
    if kind.code.name == "e4m3":
        return {"units": 16, "offsets": [0], "elements": [[0]], "parts": 1}
    count = 32 // bits
    offsets = [j // 2 + j % 2 * 16 if bits == 4 else j for j in range(count)]
    two = bits == 4 and kind.group == 16
    halves = [[j for j in range(count) if j % 2 == half] for half in (0, 1)]
    return {
        "units": 4,
        "offsets": offsets,
        "elements": halves if two else [list(range(count))],
        "parts": 2 if two else 1,
        "span": 1 << bits,
        "mantissa": hex(((1 << bits) - 1) << (23 - bits)),
    }
