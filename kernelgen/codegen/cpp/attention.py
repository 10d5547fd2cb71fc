"""Owns the C++ of attention: printed query preparation and (in decode) the insert of new keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelgen.codegen.cpp.expressions import cpp_float, cpp_name, cpp_type
from kernelgen.codegen.cpp.places import Place
from kernelgen.codegen.cpp.row_program import RowProgram
from kernelgen.codegen.families.roles import AttentionRoles
from kernelgen.ir.graph import Node
from kernelgen.ops import Attention
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel


def attention_context(kernel: Kernel, layouts: Mapping[str, str]) -> dict[str, Any]:
    """What `cpp/attention.cpp.j2` needs."""
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, AttentionRoles)
    op = roles.anchor.op
    assert isinstance(op, Attention)
    query = region.value(roles.anchor.inputs[0]).type
    state = roles.insert.inputs[0] if roles.insert else roles.anchor.inputs[1]
    cache = region.value(state).type
    return {
        "cache": cpp_type(cache.dtype),
        "act": cpp_type(op.dtype),
        "heads": query.shape[1],
        "kv_heads": cache.shape[0],
        "dim": query.row_width,
        "window": op.window or 0,
        "scale": cpp_float(op.scale),
        "state": cpp_name(region.base(state)),
        "sinks": cpp_name(region.base(roles.anchor.inputs[3])) if op.sinks else "nullptr",
        "output": cpp_name(roles.anchor.outputs[0]),
        "query": _head_row(region, roles.query, roles.anchor.inputs[0], "q", layouts),
        "keys": _head_row(region, roles.keys, roles.insert.inputs[1], "k", layouts) if roles.insert else [],
        "values": _head_row(region, (), roles.insert.inputs[2], "v", layouts) if roles.insert else [],
    }


def _head_row(
    region: Region, nodes: Sequence[Node], name: str, array: str, layouts: Mapping[str, str]
) -> list[str]:
    """Statements that fill the float array of one head: row `name` of token `t`, head `h`."""
    program = RowProgram(region, "t", layouts, head="h")
    type_ = region.value(name).type
    target = Place(array, type_, "local")
    for node in nodes:
        program.emit(node, target if node.outputs[0] == name else None)
    if not nodes:
        source = program.place(name).load("i", "h")
        program.lines.append(f"for (int i = 0; i < {type_.row_width}; ++i) {array}[i] = {source};")
    return program.lines

