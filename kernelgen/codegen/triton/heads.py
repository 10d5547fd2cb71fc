"""Owns the Triton of heads' products: a matrix of its own for each head."""

from __future__ import annotations

from kernelgen.codegen.cuda.launches import GpuKernel, Grid
from kernelgen.codegen.families.scan_roles import ApartRoles
from kernelgen.codegen.families.triton_block import ceil_div
from kernelgen.codegen.families.triton_heads import HeadsTile
from kernelgen.codegen.triton.expressions import PRECISE, triton_name, triton_type
from kernelgen.codegen.triton.kernels import Choice, StepLayout
from kernelgen.codegen.triton.single import single_launch
from kernelgen.codegen.triton.states import step_constants, whole_rows
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.ir.types import Sizes
from kernelgen.ops import HeadLinear
from kernelgen.planner.plan import Kernel


def heads_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Products of all heads, one launch."""
    tile, region, roles = HeadsTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, ApartRoles)
    op, (x, weight) = roles.anchor.op, roles.anchor.inputs
    assert isinstance(op, HeadLinear)
    matrix, rows = region.value(weight).type, region.value(x).type
    n, k = op.sizes(matrix)
    heads = matrix.static_elements // (n * k)
    narrow = matrix.dtype == rows.dtype == BFLOAT16
    context = {
        "heads": heads,
        "k": k,
        "n": n,
        "width": rows.row_width,
        "across": op.across,
        "x": whole_rows(region, x),
        "weight": triton_name(region.base(weight)),
        "output": triton_name(roles.outputs[0]),
        "made": triton_type(op.dtype),
        "product": triton_type(BFLOAT16) if narrow else "tl.float32",
        "precision": "" if narrow else PRECISE,
        "words": step_constants(layout, states=False)[:1],
    }

    def grid(sizes: Sizes) -> Grid:
        return (ceil_div(n, tile.outputs), heads, ceil_div(sizes.tokens, tile.rows))

    constants = {"TOKENS": tile.rows, "OUTPUTS": tile.outputs, "DEPTH": tile.depth}
    shape = (tile.warps, tile.stages)
    return single_launch(kernel, why, "head_linear", context, tile, constants, shape, grid)
