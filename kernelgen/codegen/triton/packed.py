"""Owns what the text of a product needs to know of packed matrices."""

from __future__ import annotations

from typing import Any

from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.triton.product import SKINNY, product_context
from kernelgen.formats import WeightFormat
from kernelgen.formats.device import row_sections
from kernelgen.planner.network import Region


def packed_context(region: Region, roles: LinearRoles, args: ArgsLayout) -> dict[str, Any]:
    """What `triton/packed.py.j2` needs: a product's context, the format, and where parts lie."""
    kind = region.value(roles.groups[0].weights[0]).type.dtype
    assert isinstance(kind, WeightFormat)
    context = product_context(region, roles, SKINNY, args)
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
    }
    return context
