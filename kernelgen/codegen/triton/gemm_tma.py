"""Owns the Triton of products by descriptors: operands that are matrices, the epilogue printed."""

from __future__ import annotations

from collections.abc import Callable

from kernelgen.codegen.cuda.launches import GpuKernel, GpuPass, Grid, Matrix
from kernelgen.codegen.cuda.unit import Argument, TritonUnit, descriptor_type
from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.codegen.families.triton_block import ceil_div
from kernelgen.codegen.families.triton_gemm_tma import TmaTile
from kernelgen.codegen.rendering import render
from kernelgen.codegen.triton.expressions import element_type, triton_name
from kernelgen.codegen.triton.kernels import Choice, Given, StepLayout, header, kernel_arguments
from kernelgen.codegen.triton.product import GEMM, product_context
from kernelgen.ir.types import Sizes, Type
from kernelgen.planner.plan import Kernel


def tma_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Products of stored rows. `why`: the planner's argument, for the header."""
    region, roles, tile = kernel.match.region, kernel.match.roles, TmaTile(**choice)
    assert isinstance(roles, LinearRoles)
    given = described(kernel, roles, tile.rows, tile.outputs, tile.depth)
    text = render(
        "triton/gemm_tma.py.j2",
        name=kernel.name,
        header=header(kernel, why),
        parameters=[{"name": g.argument.name, "note": g.note} for g in given],
        x=triton_name(region.base(roles.x)),
        # One loop for all groups would have to hold the addresses of every group's outputs.
        **product_context(region, roles, GEMM, layout.args, together=False),
    )
    x = region.value(roles.x).type
    widths = [region.value(g.anchors[0].outputs[0]).type.row_width for g in roles.groups]
    tiles = sum(ceil_div(width, tile.outputs) for width in widths)

    def grid(sizes: Sizes) -> Grid:
        return (ceil_div(_rows_of(x)(sizes), tile.rows) * tiles, 1, 1)

    constants = {
        "ROWS": tile.rows,
        "OUTPUTS": tile.outputs,
        "DEPTH": tile.depth,
        "BANDS": tile.bands,
    }
    unit = TritonUnit(
        name="_".join([kernel.name, *(f"{name[0]}{value}" for name, value in choice.items())]),
        text=text,
        function=kernel.name,
        signature=tuple(g.argument for g in given),
        constants=tuple(constants.items()),
        num_warps=tile.warps,
        num_stages=tile.stages,
        pdl=True,
        tile=", ".join(f"{name} {value}" for name, value in choice.items()),
    )
    return GpuKernel((GpuPass(unit, tuple(g.source for g in given), grid),))


def described(
    kernel: Kernel, roles: LinearRoles, rows: int, outputs: int, depth: int
) -> tuple[Given, ...]:
    """Operands in order; rows that nothing prepares and weights as descriptors of the blocks that a
    step multiplies: `rows` and `outputs` by `depth`.
    """
    region = kernel.match.region
    x, base = region.value(roles.x).type, region.base(roles.x)
    place = kernel.signature.index
    made = {
        triton_name(weight): (
            outputs,
            Matrix(place(weight), _rows_of(region.value(weight).type), roles.k),
        )
        for group in roles.groups
        for weight in group.weights
    }
    if not roles.prologue:
        made[triton_name(base)] = (rows, Matrix(place(base), _rows_of(x), roles.k))
    element = element_type(x.dtype)
    found = []
    for given in kernel_arguments(kernel):
        if given.argument.name in made:
            side, matrix = made[given.argument.name]
            type_ = descriptor_type(element, side, depth)
            note = f"{given.note}, {side} × {depth} at a time"
            given = Given(Argument(given.argument.name, type_), matrix, note)
        found.append(given)
    return tuple(found)


def _rows_of(type_: Type) -> Callable[[Sizes], int]:
    """Rows of a value in a plan: of weights always the same."""
    return lambda sizes: type_.elements(sizes.capacity) // type_.row_width
