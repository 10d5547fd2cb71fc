"""Owns the C++ of projections: printed row prologue, weight groups and printed epilogues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelgen.codegen.cpp.expressions import cpp_expr, cpp_name, cpp_type, rounded, stored
from kernelgen.codegen.cpp.places import Place
from kernelgen.codegen.cpp.row_program import RowProgram
from kernelgen.codegen.families.roles import LinearGroup, LinearRoles
from kernelgen.ir.graph import Role
from kernelgen.ir.types import Dim
from kernelgen.ops import Pointwise, SelectRows
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel


def linear_context(kernel: Kernel, layouts: Mapping[str, str]) -> dict[str, Any]:
    """What `cpp/linear.cpp.j2` needs."""
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, LinearRoles)
    x = region.value(roles.x).type
    weight = region.value(roles.groups[0].weights[0]).type
    return {
        "act": cpp_type(x.dtype),
        "weight": cpp_type(weight.dtype),
        "k": roles.k,
        "rows": "step.logit_rows" if x.leading is Dim.B else "step.tokens",
        "prologue": _prologue(region, roles, layouts),
        "groups": [_group(region, g) for g in roles.groups],
    }


def _prologue(region: Region, roles: LinearRoles, layouts: Mapping[str, str]) -> list[str]:
    """Statements that write `row[0 … K)` of token row `t`."""
    program = RowProgram(region, "t", layouts)
    x = region.value(roles.x).type
    packed = Place("row", x, "packed")
    for node in roles.prologue:
        last = node.outputs[0] == roles.x and not isinstance(node.op, SelectRows)
        program.emit(node, packed if last else None)
    if roles.x not in program.places or program.places[roles.x].kind != "packed":
        source = program.place(roles.x).load("i", "")
        program.lines.append(f"for (int i = 0; i < {roles.k}; ++i) {packed.store('i', '', source)}")
    return program.lines


def _group(region: Region, group: LinearGroup) -> dict[str, Any]:
    """One weight group: its matrices, and the statements that finish column `i` of a panel."""
    n = region.value(group.anchors[0].outputs[0]).type.row_width
    return {
        "n": n,
        "weights": [cpp_name(w) for w in group.weights],
        "names": [a.name for a in group.anchors],
        "accumulators": [f"acc{i}" for i in range(len(group.anchors))]
        if len(group.anchors) > 1
        else ["acc"],
        "epilogue": _epilogue(region, group, n),
    }


def _epilogue(region: Region, group: LinearGroup, n: int) -> list[str]:
    """Statements for one output column; every op's result is rounded to its own dtype."""
    lines: list[str] = []
    names: dict[str, str] = {}
    for i, anchor in enumerate(group.anchors):
        out = anchor.outputs[0]
        acc = "acc[i]" if len(group.anchors) == 1 else f"acc{i}[i]"
        names[out] = cpp_name(out)
        lines.append(
            f"const float {names[out]}_value = {rounded(acc, region.value(out).type.dtype)};"
        )
    for node in group.epilogue:
        assert isinstance(node.op, Pointwise)
        out = node.outputs[0]
        inputs = [_column(region, name, names, n) for name in node.inputs]
        names[out] = cpp_name(out)
        text = rounded(cpp_expr(node.op.expr, inputs), region.value(out).type.dtype)
        lines.append(f"const float {names[out]}_value = {text};")
    for out in group.outputs:
        dtype = region.value(out).type.dtype
        lines.append(
            f"{names[out]}[(size_t)t * {n} + n0 + i] = {stored(f'{names[out]}_value', dtype)};"
        )
    return lines


def _column(region: Region, name: str, made: Mapping[str, str], n: int) -> str:
    """An epilogue operand at column `n0 + i` of row `t`."""
    base = region.base(name)
    if base in made:
        return f"{made[base]}_value"
    value = region.value(base)
    offset = region.network.access[name].offset
    column = f"n0 + i + {offset}" if offset else "n0 + i"
    at = (
        column
        if value.role is Role.WEIGHT
        else f"(size_t)t * {value.type.static_elements} + {column}"
    )
    return f"kg::to_float({cpp_name(base)}[{at}])"
