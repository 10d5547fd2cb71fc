"""Owns the text of products: matrices side by side, prepared rows, finished columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelgen.codegen.families.roles import LinearGroup, LinearRoles
from kernelgen.codegen.triton.expressions import rounded, stored, triton_name
from kernelgen.codegen.triton.frame import Frame, Mask
from kernelgen.codegen.triton.prepared_rows import PreparedRows
from kernelgen.codegen.triton.tile_program import TileProgram
from kernelgen.core.dtypes import BFLOAT16
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
GEMM = Orientation(
    rows=_ROWS,
    sums=Frame(
        "row[:, None]", "col[None, :]", Mask("mine"), Mask("inside[None, :]"), Mask("live[:, None]")
    ),
    tensor_cores=True,
)


def product_context(region: Region, roles: LinearRoles, how: Orientation) -> dict[str, Any]:
    """What the product templates need."""
    x = region.value(roles.x).type
    weight = region.value(roles.groups[0].weights[0]).type.dtype
    exact = not how.tensor_cores or not (x.dtype == weight == BFLOAT16)
    rows = PreparedRows(region, roles, how.rows, exact)
    assert x.leading is not None
    return {
        "k": roles.k,
        "count_word": COUNT_WORDS[x.leading],
        "weight_bytes": weight.bytes,
        "exact": exact,
        "rows": rows.context(),
        "sections": sections(region, roles, how.sums),
    }


def sections(region: Region, roles: LinearRoles, frame: Frame) -> list[dict[str, Any]]:
    """Neighbouring groups with equally many matrices: one loop serves all of a section."""
    found: list[dict[str, Any]] = []
    for group in roles.groups:
        made = _group(region, group, frame)
        if not found or found[-1]["matrices"] != len(group.weights):
            found.append({"matrices": len(group.weights), "groups": []})
        found[-1]["groups"].append(made)
    return found


def _group(region: Region, group: LinearGroup, frame: Frame) -> dict[str, Any]:
    """Matrices of a group, and the statements that finish its columns from `sum0` and `sum1`."""
    program = TileProgram(region, frame)
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
    }
