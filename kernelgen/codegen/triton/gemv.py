"""Owns the text of one-row products: what their loads wait for, and how early they are issued."""

from __future__ import annotations

from typing import Any

from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.codegen.families.triton_gemv import GemvTile
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.triton.order import ahead, late
from kernelgen.codegen.triton.product import GEMV, product_context
from kernelgen.planner.network import Region

_SUMS = ("sum0", "sum1")


def gemv_context(
    region: Region, roles: LinearRoles, args: ArgsLayout, tile: GemvTile
) -> dict[str, Any]:
    """What `triton/gemv.py.j2` needs: of each row what can be loaded a step before, as it lies
    in memory before (`early`) or after (`late`) the kernel before has ended.
    """
    context = product_context(region, roles, GEMV, args)
    context["keeps_row"] = tile.keeps_row
    rows, written = context["rows"], late(region)
    chosen = {line.partition(" = ")[0] for line in rows["chosen"]}
    context["ahead"] = ahead([*rows["lines"], f"x_row = {rows['text']}"], written | chosen)
    for section in context["sections"]:
        finish_early(section, written)
    return context


def finish_early(section: dict[str, Any], written: set[str]) -> None:
    """Take the loads of a section's epilogue out of its lines, where one group has it alone."""
    section["early"] = section["late"] = ()
    if len(section["groups"]) > 1:
        return
    (group,) = section["groups"]
    found = ahead(group["lines"], written, _SUMS)
    section["early"], section["late"], group["lines"] = found.early, found.late, list(found.work)
