"""Owns the C++ of attention: printed query preparation and (in decode) the insert of new keys
and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelgen.codegen.cpp.expressions import cpp_float, cpp_name, cpp_type
from kernelgen.codegen.cpp.insert import head_row, insert_context
from kernelgen.codegen.cpp.places import Place
from kernelgen.codegen.families.roles import AttentionRoles
from kernelgen.ir.types import Type
from kernelgen.ops import Attention
from kernelgen.planner.plan import Kernel


def attention_context(kernel: Kernel, layouts: Mapping[str, str]) -> dict[str, Any]:
    """What `cpp/attention.cpp.j2` needs."""
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, AttentionRoles)
    op = roles.anchor.op
    assert isinstance(op, Attention)
    name = roles.anchor.inputs[0]
    query = region.value(name).type
    state = roles.insert.inputs[0] if roles.insert else roles.anchor.inputs[1]
    cache = region.value(state).type
    row = Place("row", Type(query.shape[-1:], op.dtype))
    return {
        "cache": cpp_type(cache.dtype),
        "act": cpp_type(op.dtype),
        "heads": query.shape[1],
        "kv_heads": cache.shape[0],
        "dim": query.row_width,
        "window": op.window or 0,
        "scale": cpp_float(op.scale),
        "state": cpp_name(region.base(state)),
        "sinks": cpp_name(region.base(roles.anchor.inputs[3])) if op.sinks else "",
        "scales": cpp_name(region.base(roles.anchor.inputs[3 + op.sinks])) if op.scaled else "",
        "output": cpp_name(roles.anchor.outputs[0]),
        "query": head_row(region, roles.query, name, row, layouts),
        "insert": insert_context(region, roles.insert, roles.keys, layouts)
        if roles.insert
        else None,
    }
