"""Owns the C++ of cache inserts: printed keys and values of one head of one token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelgen.codegen.cpp.expressions import cpp_name, cpp_type
from kernelgen.codegen.cpp.places import Place
from kernelgen.codegen.cpp.row_program import RowProgram
from kernelgen.ir.graph import Node
from kernelgen.ir.types import Type
from kernelgen.ops import LatentWrite
from kernelgen.planner.network import Region


def insert_context(
    region: Region, insert: Node, keys: Sequence[Node], layouts: Mapping[str, str]
) -> dict[str, Any]:
    """What `cpp/insert.j2` needs; `keys` are the ops inside the kernel that keys and values
    depend on."""
    if isinstance(insert.op, LatentWrite):
        return _latent_context(region, insert, keys, layouts)
    state, key, value, _rows, *scales = insert.inputs
    cache = region.value(state).type
    row = Type(cache.shape, region.value(key).type.dtype if scales else cache.dtype)
    return {
        "cache": cpp_type(cache.dtype),
        "kv_heads": cache.shape[0],
        "dim": cache.row_width,
        "state": cpp_name(region.base(state)),
        "row": cpp_type(row.dtype),
        "scales": cpp_name(region.base(scales[0])) if scales else "",
        "fill": [
            *head_row(region, keys, key, Place("key", row), layouts),
            *head_row(region, keys, value, Place("value", row), layouts),
        ],
    }


def _latent_context(
    region: Region, insert: Node, made: Sequence[Node], layouts: Mapping[str, str]
) -> dict[str, Any]:
    """One row a token, put together from two values."""
    state, latent, beside, _rows = insert.inputs
    cache = region.value(state).type
    rank = region.value(latent).type.row_width
    return {
        "cache": cpp_type(cache.dtype),
        "width": cache.row_width,
        "state": cpp_name(region.base(state)),
        "fill": [
            *_token_row(region, made, latent, Place("row", cache), layouts),
            *_token_row(region, made, beside, Place(f"(row + {rank})", cache), layouts),
        ],
    }


def head_row(
    region: Region, nodes: Sequence[Node], name: str, target: Place, layouts: Mapping[str, str]
) -> list[str]:
    """Statements that fill `target` with value `name` of token `t`, head `h`, in a scope of
    their own."""
    return _filled(RowProgram(region, "t", layouts, head="h"), region, nodes, name, target)


def _token_row(
    region: Region, nodes: Sequence[Node], name: str, target: Place, layouts: Mapping[str, str]
) -> list[str]:
    """The same for a value without heads."""
    return _filled(RowProgram(region, "t", layouts), region, nodes, name, target)


def _filled(
    program: RowProgram, region: Region, nodes: Sequence[Node], name: str, target: Place
) -> list[str]:
    needed = _needed(region, nodes, name)
    for node in needed:
        program.emit(node, target if node.outputs[0] == name else None)
    if not needed or needed[-1].outputs[0] != name:
        source = program.place(name).load("i", program.head)
        width = region.value(name).type.row_width
        put = target.store("i", program.head, source)
        program.lines.append(f"for (int i = 0; i < {width}; ++i) {put}")
    return ["{", *(f"  {line}" for line in program.lines), "}"]


def _needed(region: Region, nodes: Sequence[Node], name: str) -> list[Node]:
    """Those of `nodes` that `name` depends on, in order."""
    wanted, found = {region.base(name)}, []
    for node in reversed(nodes):
        if node.outputs[0] in wanted:
            found.append(node)
            wanted |= {region.base(i) for i in node.inputs}
    return found[::-1]
