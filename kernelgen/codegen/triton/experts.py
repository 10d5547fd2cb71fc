"""Owns what products with chosen experts know of their region: sizes, stacks, finished columns."""

from __future__ import annotations

from typing import Any

from kernelgen.codegen.families.expert_roles import ExpertRoles
from kernelgen.codegen.families.triton_experts import experts_format
from kernelgen.codegen.triton.expressions import rounded, stored, triton_name
from kernelgen.codegen.triton.frame import Frame
from kernelgen.codegen.triton.packed import stack_context
from kernelgen.codegen.triton.tile_program import TileProgram
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.planner.network import Region


def narrow(region: Region, roles: ExpertRoles) -> bool:
    """Whether tensor cores multiply bfloat16."""
    x, stack = (region.value(n).type.dtype for n in roles.anchors[0].inputs[:2])
    packed = experts_format(region, roles) is not None
    return x == BFLOAT16 and (packed or stack == BFLOAT16)


def experts_context(region: Region, roles: ExpertRoles, frame: Frame) -> dict[str, Any]:
    """What all product templates need; `lines` finish columns from `sum0` and `sum1`."""
    x, ids = region.value(roles.anchors[0].inputs[0]).type, region.value(roles.ids).type
    stack = region.value(roles.stacks[0]).type
    n, top = stack.shape[1], ids.row_width
    program = TileProgram(region, frame)
    sums = [roles.sum] if roles.sum else list(roles.anchors)
    for i, node in enumerate([*sums, *([roles.beside] if roles.beside else [])]):
        out = node.outputs[0]
        text = rounded(f"sum{i}", region.value(out).type.dtype)
        program.bind(out, program.let(out, text) if text != f"sum{i}" else text)
    for out in roles.outputs:
        value, dtype = program.value(out), region.value(out).type.dtype
        pointer = f"{triton_name(out)} + {frame.row} * {n} + {frame.column}"
        program.lines.append(frame.tile.store(pointer, stored(value, dtype)))
    kind = experts_format(region, roles)
    return {
        "experts": stack.shape[0],
        "n": n,
        "k": stack.row_width,
        "top": top,
        "share": top if len(x.shape) == 2 else 1,
        "x": triton_name(region.base(roles.anchors[0].inputs[0])),
        "ids": triton_name(region.base(roles.ids)),
        "matrices": len(roles.anchors),
        "stacks": [triton_name(s) for s in roles.stacks],
        "packed": stack_context(kind, int(str(n)), stack.row_width) if kind else None,
        "lines": program.lines,
    }
