"""Owns the text of one-row products: what their loads wait for, and how early they are issued."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.codegen.families.triton_block import next_power_of_two
from kernelgen.codegen.families.triton_gemv import GemvTile
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.triton.expressions import stored, triton_name
from kernelgen.codegen.triton.frame import Frame, Mask
from kernelgen.codegen.triton.order import Ahead, ahead, late
from kernelgen.codegen.triton.product import GEMV, product_context, step_words
from kernelgen.codegen.triton.tile_program import TileProgram
from kernelgen.planner.network import Region

_SUMS = ("sum0", "sum1")
_PLACE = ("k", "real", "RAGGED")


@dataclass(frozen=True)
class Rest:
    """Statements of a row once more, for what the first piece of it leaves: other names."""

    ahead: Ahead
    statistics: Sequence[dict[str, Any]]


def gemv_context(
    region: Region, roles: LinearRoles, args: ArgsLayout, tile: GemvTile
) -> dict[str, Any]:
    """What `triton/gemv.py.j2` needs: of each row what can be loaded a step before, as it lies
    in memory before (`early`) or after (`late`) the kernel before has ended.
    """
    context = product_context(region, roles, GEMV, args)
    context["keeps_row"] = tile.keeps_row
    context["stored_row"] = _stored_row(region, roles, args) if roles.keeps else None
    rows, written = context["rows"], late(region)
    chosen = {line.partition(" = ")[0] for line in rows["chosen"]}
    lines = [*rows["lines"], f"x_row = {rows['text']}"]
    context["ahead"] = ahead(lines, written | chosen)
    context["rest"] = (
        _rest(lines, rows["statistics"], written | chosen) if tile.rest(roles.k) else 0
    )
    for section in context["sections"]:
        finish_early(section, written)
    return context


def _rest(lines: Sequence[str], statistics: Sequence[dict[str, Any]], written: set[str]) -> Rest:
    made = [line.partition(" = ")[0] for line in lines] + [s["name"] for s in statistics]
    names = re.compile(rf"\b({'|'.join((*_PLACE, *made))})\b")

    def again(text: str) -> str:
        return names.sub(r"\1_rest", text)

    return Rest(
        ahead([again(line) for line in lines], written),
        [{**s, "name": again(s["name"]), "gather": again(s["gather"])} for s in statistics],
    )


def _stored_row(region: Region, roles: LinearRoles, args: ArgsLayout) -> dict[str, Any]:
    """Statements that store the prepared row whole: what one block more does."""
    frame = Frame("row", "k[None, :]", Mask("real[None, :]"), Mask("real[None, :]"))
    program = TileProgram(region, frame, words=step_words(args))
    value, dtype = program.value(roles.x), region.value(roles.x).type.dtype
    pointer = f"{triton_name(region.base(roles.x))} + row * {roles.k} + k[None, :]"
    mask = Mask("real[None, :] & (count > 0)")
    lines = [*program.lines, mask.store(pointer, stored(value, dtype))]
    return {"width": next_power_of_two(roles.k), "lines": lines}


def finish_early(section: dict[str, Any], written: set[str]) -> None:
    """Take the loads of a section's epilogue out of its lines, where one group has it alone."""
    section["early"] = section["late"] = ()
    if len(section["groups"]) > 1:
        return
    (group,) = section["groups"]
    found = ahead(group["lines"], written, _SUMS)
    section["early"], section["late"], group["lines"] = found.early, found.late, list(found.work)
