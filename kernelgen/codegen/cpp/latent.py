"""Owns the C++ of latent rows: attention over them, inserts of them, products of heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelgen.codegen.cpp.expressions import cpp_float, cpp_name, cpp_type
from kernelgen.codegen.families.scan_roles import ApartRoles
from kernelgen.ops import HeadLinear, LatentAttention
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel


def latent_attention_context(kernel: Kernel, layouts: Mapping[str, str]) -> dict[str, Any]:
    """What `cpp/latent_attention.cpp.j2` needs."""
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, ApartRoles)
    op, (inner, outer, state, _rows) = roles.anchor.op, roles.anchor.inputs
    assert isinstance(op, LatentAttention)
    queries, cache = region.value(inner).type, region.value(state).type
    assert region.value(outer).type.dtype == queries.dtype, "queries of one dtype"
    return {
        "act": cpp_type(queries.dtype),
        "made": cpp_type(op.dtype),
        "cache": cpp_type(cache.dtype),
        "heads": queries.shape[1],
        "rank": queries.row_width,
        "width": cache.row_width,
        "query": region.value(outer).type.row_width,
        "inner": rows_of(region, inner),
        "outer": rows_of(region, outer),
        "state": cpp_name(region.base(state)),
        "scale": cpp_float(op.scale),
        "output": cpp_name(roles.outputs[0]),
    }


def head_linear_context(kernel: Kernel, layouts: Mapping[str, str]) -> dict[str, Any]:
    """What `cpp/head_linear.cpp.j2` needs."""
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, ApartRoles)
    op, (x, weight) = roles.anchor.op, roles.anchor.inputs
    assert isinstance(op, HeadLinear)
    matrix = region.value(weight).type
    columns, k = op.sizes(matrix)
    return {
        "act": cpp_type(region.value(x).type.dtype),
        "made": cpp_type(op.dtype),
        "matrix": cpp_type(matrix.dtype),
        "heads": matrix.shape[0],
        "k": k,
        "columns": columns,
        "width": region.value(x).type.row_width,
        "across": "true" if op.across else "false",
        "x": rows_of(region, x),
        "weight": cpp_name(region.base(weight)),
        "output": cpp_name(roles.outputs[0]),
    }


def rows_of(region: Region, name: str) -> str:
    """The rows of a value that is all of what it is a view of, or a weight."""
    access = region.network.access[name]
    whole = region.value(access.base).type.static_elements
    assert access.offset == 0 and region.value(name).type.static_elements == whole, name
    return cpp_name(access.base)
