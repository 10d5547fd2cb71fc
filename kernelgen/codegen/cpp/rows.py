"""Owns the C++ of row kernels: every token row decided by itself, all of it in one loop over
tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelgen.codegen.cpp.expressions import cpp_name
from kernelgen.codegen.cpp.insert import insert_context
from kernelgen.codegen.cpp.places import Place
from kernelgen.codegen.cpp.row_program import RowProgram
from kernelgen.ir.graph import Node
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Dim
from kernelgen.ops import RowReduce
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel


def rows_context(kernel: Kernel, layouts: Mapping[str, str]) -> dict[str, Any]:
    """What `cpp/rows.cpp.j2` needs: one loop over rows, then the cache inserts."""
    region = kernel.match.region
    inserts = [n for n in region.nodes if n.op.has(Trait.STATE_WRITE)]
    program = RowProgram(region, "t", layouts)
    for node in _loop_nodes(region, inserts):
        program.emit(node, _stored_place(region, node))
        _store_number(program, node)
    leading = {region.value(n.outputs[0]).type.leading for n in region.nodes}
    return {
        "rows": "step.logit_rows" if Dim.B in leading else "step.tokens",
        "body": program.lines,
        "mixes": bool(region.with_trait(Trait.ROW_MIX)),
        "inserts": [insert_context(region, n, region.nodes, layouts) for n in inserts],
    }


def _loop_nodes(region: Region, inserts: Sequence[Node]) -> list[Node]:
    """Row ops whose results leave the kernel, and what they depend on; the inserts compute their
    own."""
    wanted, found = set(region.outputs), []
    for node in reversed(region.nodes):
        if node not in inserts and node.outputs[0] in wanted:
            found.append(node)
            wanted |= {region.base(i) for i in node.inputs}
    return found[::-1]


def _stored_place(region: Region, node: Node) -> Place | None:
    """Typed memory for a value that leaves the kernel and is not read inside it; others stay
    local."""
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
        program.lines.append(
            f"for (int h = 0; h < {count}; ++h) {name}[(size_t)t * {count} + h] = {local}[h];"
        )
