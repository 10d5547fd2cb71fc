"""Owns the C++ of row kernels: every token row decided by itself, all of it in one loop over tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelgen.codegen.cpp.expressions import cpp_name, cpp_type
from kernelgen.codegen.cpp.places import Place
from kernelgen.codegen.cpp.row_program import RowProgram
from kernelgen.ir.graph import Node
from kernelgen.ir.types import Dim
from kernelgen.ops import CacheWrite, RowReduce
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel


def rows_context(kernel: Kernel, layouts: Mapping[str, str]) -> dict[str, Any]:
    """What `cpp/rows.cpp.j2` needs."""
    region = kernel.match.region
    program = RowProgram(region, "t", layouts)
    for node in region.nodes:
        if isinstance(node.op, CacheWrite):
            _insert(program, node)
        else:
            program.emit(node, _stored_place(region, node))
            _store_number(program, node)
    leading = {region.value(n.outputs[0]).type.leading for n in region.nodes}
    return {
        "rows": "step.logit_rows" if Dim.B in leading else "step.tokens",
        "body": program.lines,
    }


def _stored_place(region: Region, node: Node) -> Place | None:
    """Typed memory for a value that leaves the kernel and is not read inside it; others stay local."""
    out = node.outputs[0]
    if out not in region.outputs or isinstance(node.op, RowReduce):
        return None
    type_ = region.value(out).type
    text = f"({cpp_name(out)} + (size_t)t * {type_.static_elements})"
    return Place(text, type_, "tensor", len(type_.shape) == 3)


def _store_number(program: RowProgram, node: Node) -> None:
    """A row statistic that leaves the kernel."""
    out = node.outputs[0]
    if not isinstance(node.op, RowReduce) or out not in program.region.outputs:
        return
    type_ = program.region.value(out).type
    name, local = cpp_name(out), program.places[out].text
    count = type_.static_elements
    if count == 1:
        program.lines.append(f"{name}[t] = {local};")
    else:
        program.lines.append(f"for (int h = 0; h < {count}; ++h) {name}[(size_t)t * {count} + h] = {local}[h];")


def _insert(program: RowProgram, node: Node) -> None:
    """Keys and values of the token to their page."""
    region = program.region
    state, keys, values, _rows = node.inputs
    type_ = region.value(keys).type
    k, v = program.place(keys), program.place(values)
    cache = cpp_type(region.value(state).type.dtype)
    program.lines += [
        f"if (const kg::PageSlot at = step.slot_of_token(*{cpp_name(region.base(state))}, t); at.valid()) {{",
        f"  kg::insert_row<{cache}, {type_.shape[1]}, {type_.row_width}>(at, {k.text}, {v.text});",
        "}",
    ]
