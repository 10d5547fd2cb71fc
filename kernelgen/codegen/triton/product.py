"""Owns the text of products: matrices side by side, prepared rows, finished columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelgen.codegen.families.roles import LinearGroup, LinearRoles
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.triton.expressions import rounded, stored, triton_name
from kernelgen.codegen.triton.frame import Frame, Mask
from kernelgen.codegen.triton.prepared_rows import PreparedRows
from kernelgen.codegen.triton.tile_program import TileProgram
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.formats import WeightFormat
from kernelgen.ir.types import Dim
from kernelgen.planner.network import Region

COUNT_WORDS = {Dim.T: 0, Dim.B: 2}
"""where `args` holds the number of token rows and of logit rows"""


@dataclass(frozen=True)
class Orientation:
    """The names that a product template gives to its indices."""

    rows: Frame
    """of the tile of rows that is multiplied: `[rows, DEPTH]`"""
    sums: Frame
    """of the finished sums"""
    tensor_cores: bool


_REAL = Mask("real[None, :]", "RAGGED")
_ROWS = Frame("row[:, None]", "k[None, :]", Mask("known"), _REAL, Mask("live[:, None]"))

# One row: columns lie along one axis.
GEMV = Orientation(
    rows=Frame("row", "k[None, :]", _REAL, _REAL),
    sums=Frame("row", "col", Mask("mine"), Mask("mine")),
    tensor_cores=False,
)
# Few rows: columns are the long side of the tensor cores' product.
SKINNY = Orientation(
    rows=_ROWS,
    sums=Frame(
        "row[None, :]", "col[:, None]", Mask("mine"), Mask("inside[:, None]"), Mask("live[None, :]")
    ),
    tensor_cores=True,
)
# The same where the template shapes rows and columns as lanes hold them.
FEW = Orientation(
    rows=Frame("row_in", "k", Mask("known"), Mask("real", "RAGGED"), Mask("live_in")),
    sums=SKINNY.sums,
    tensor_cores=True,
)
GEMM = Orientation(
    rows=_ROWS,
    sums=Frame(
        "row[:, None]", "col[None, :]", Mask("mine"), Mask("inside[None, :]"), Mask("live[:, None]")
    ),
    tensor_cores=True,
)


def product_context(
    region: Region,
    roles: LinearRoles,
    how: Orientation,
    args: ArgsLayout,
    together: bool = True,
) -> dict[str, Any]:
    """What the product templates need. `together`: groups with equally many matrices share a loop
    and pick their matrix before it.
    """
    x = region.value(roles.x).type
    weight = region.value(roles.groups[0].weights[0]).type.dtype
    narrow = weight == BFLOAT16 or isinstance(weight, WeightFormat)
    exact = not how.tensor_cores or not (x.dtype == BFLOAT16 and narrow)
    taken: set[str] = set()
    rows = PreparedRows(region, roles, how.rows, exact, step_words(args), taken)
    assert x.leading is not None
    return {
        "k": roles.k,
        "count_word": COUNT_WORDS[x.leading],
        "weight_bytes": weight.bytes,
        "exact": exact,
        "matrices": max(len(group.weights) for group in roles.groups),
        "rows": rows.context(),
        "sections": sections(region, roles, how.sums, taken, together),
    }


def step_words(args: ArgsLayout) -> dict[str, int]:
    """Step values that kernels read from the step's arguments."""
    return {"logit_tokens": args.offset("logit_token")}


def sections(
    region: Region, roles: LinearRoles, frame: Frame, taken: set[str], together: bool = True
) -> list[dict[str, Any]]:
    """Neighbouring groups with equally many matrices: one loop serves all of a section. Each group
    is one of its own unless they are taken `together`.
    """
    groups = [_group(region, group, frame, taken) for group in roles.groups]
    found: list[dict[str, Any]] = []
    for number, made in enumerate(groups):
        made["number"] = number
        made["before"] = f"END_{number - 1} + " if number else ""
        made["start"] = f"(tile - END_{number - 1})" if number else "tile"
        if not together or not found or found[-1]["matrices"] != len(made["weights"]):
            found.append({"matrices": len(made["weights"]), "groups": [], "meets": False})
        found[-1]["groups"].append(made)
        found[-1]["meets"] |= made["meets"]
    last = len(groups) - 1
    for section in found:
        mine = [group["number"] for group in section["groups"]]
        section["when"] = _between(mine[0], mine[-1], 0, last)
        section["end"] = f"END_{mine[-1]}"
        for group in section["groups"]:
            group["when"] = _between(group["number"], group["number"], mine[0], mine[-1])
    return found


def _between(first: int, last: int, least: int, most: int) -> str:
    """The condition for a tile of groups `first` to `last` among those from `least` to `most`."""
    conditions = [f"tile >= END_{first - 1}"] if first > least else []
    conditions += [f"tile < END_{last}"] if last < most else []
    return conditions[0] if len(conditions) == 1 else " & ".join(f"({c})" for c in conditions)


def _group(region: Region, group: LinearGroup, frame: Frame, taken: set[str]) -> dict[str, Any]:
    """Matrices of a group, and the statements that finish its columns from `sum0` and `sum1`."""
    program = TileProgram(region, frame, taken)
    for i, anchor in enumerate(group.anchors):
        out = anchor.outputs[0]
        text = rounded(f"sum{i}", region.value(out).type.dtype)
        program.bind(out, program.let(out, text) if text != f"sum{i}" else text)
    n = region.value(group.anchors[0].outputs[0]).type.row_width
    for out in group.outputs:
        value, dtype = program.value(out), region.value(out).type.dtype
        pointer = f"{triton_name(out)} + {frame.row} * {n} + {frame.column}"
        program.lines.append(frame.tile.store(pointer, stored(value, dtype)))
    return {
        "n": n,
        "weights": [triton_name(w) for w in group.weights],
        "names": [a.name for a in group.anchors],
        "lines": program.lines,
        "meets": _meets_rows(region, group),
    }


def _meets_rows(region: Region, group: LinearGroup) -> bool:
    """Whether finished columns meet rows from outside, such as a residual."""
    outside = {
        n for node in group.epilogue for n in node.inputs if region.base(n) not in region.made
    }
    return any(region.value(name).type.leading is not None for name in outside)
