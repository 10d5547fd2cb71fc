"""Owns the C++ of scans: operands of the library's kernels, printed ends of elements and heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelgen.codegen.cpp.expressions import (
    cpp_expr,
    cpp_float,
    cpp_name,
    cpp_type,
    rounded,
    stored,
)
from kernelgen.codegen.cpp.latent import rows_of
from kernelgen.codegen.cpp.places import Place
from kernelgen.codegen.cpp.row_program import RowProgram
from kernelgen.codegen.families.scan_roles import ApartRoles
from kernelgen.ir.graph import Role
from kernelgen.ops import DeltaScan, Pointwise
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel


def short_conv_context(kernel: Kernel, layouts: Mapping[str, str]) -> dict[str, Any]:
    """What `cpp/short_conv.cpp.j2` needs."""
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, ApartRoles)
    x, weight, state, _rows = roles.anchor.inputs
    taps = region.value(weight).type
    return {
        "act": cpp_type(region.value(x).type.dtype),
        "columns": taps.shape[0],
        "taps": taps.row_width,
        "state": cpp_name(region.base(state)),
        "x": rows_of(region, x),
        "weight": cpp_name(region.base(weight)),
        "epilogue": _elements(region, roles),
    }


def delta_scan_context(kernel: Kernel, layouts: Mapping[str, str]) -> dict[str, Any]:
    """What `cpp/delta_scan.cpp.j2` needs."""
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, ApartRoles)
    op, inputs = roles.anchor.op, roles.anchor.inputs
    assert isinstance(op, DeltaScan)
    q, v = region.value(inputs[0]).type, region.value(inputs[2]).type
    return {
        "act": cpp_type(q.dtype),
        "heads": q.shape[1],
        "keys": q.row_width,
        "values": v.row_width,
        "state": cpp_name(region.base(inputs[7])),
        "inputs": [rows_of(region, name) for name in inputs[:7]],
        "bounded": "false" if op.bound is None else "true",
        "scale": cpp_float(op.scale),
        "eps": cpp_float(op.eps),
        "bound": cpp_float(op.bound or 0.0),
        "epilogue": _head(region, roles, layouts),
    }


def _elements(region: Region, roles: ApartRoles) -> list[str]:
    """Statements for one element: row t, column c, `y` being what the convolution gives."""
    out = roles.anchor.outputs[0]
    type_ = region.value(out).type
    names = {out: f"{cpp_name(out)}_value"}
    lines = [f"const float {names[out]} = {rounded('y', type_.dtype)};"]
    for node in roles.epilogue:
        assert isinstance(node.op, Pointwise)
        out = node.outputs[0]
        inputs = [_element(region, name, names, type_.row_width) for name in node.inputs]
        text = rounded(cpp_expr(node.op.expr, inputs), region.value(out).type.dtype)
        names[out] = f"{cpp_name(out)}_value"
        lines.append(f"const float {names[out]} = {text};")
    last = stored(names[out], region.value(out).type.dtype)
    lines.append(f"{cpp_name(out)}[(size_t)t * {type_.row_width} + c] = {last};")
    return lines


def _element(region: Region, name: str, made: Mapping[str, str], columns: int) -> str:
    base = region.base(name)
    if base in made:
        return made[base]
    value, offset = region.value(base), region.network.access[name].offset
    column = f"c + {offset}" if offset else "c"
    row = "" if value.role is Role.WEIGHT else f"(size_t)t * {value.type.static_elements} + "
    return f"kg::to_float({cpp_name(base)}[{row}{column}])"


def _head(region: Region, roles: ApartRoles, layouts: Mapping[str, str]) -> list[str]:
    """Statements for one head of one token, `made` being what the scan gives."""
    first, last = roles.anchor.outputs[0], roles.outputs[0]
    program = RowProgram(region, "t", layouts, head="h")
    type_ = region.value(first).type
    width, heads = type_.row_width, type_.shape[1]
    at = f"((size_t)t * {heads} + h) * {width}"
    target = Place(f"({cpp_name(last)} + {at})", region.value(last).type)
    here = target if last == first else Place("head", type_, "local", False, False)
    if last != first:
        program.lines.append(f"alignas(64) float head[{width}];")
    program.lines.append(f"for (int i = 0; i < {width}; ++i) {here.store('i', 'h', 'made[i]')}")
    program.places[first] = here
    for node in roles.epilogue:
        program.emit(node, target if node.outputs[0] == last else None)
    return program.lines
