"""Owns the Triton of a short convolution: rows of a request with those before them."""

from __future__ import annotations

from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel, Grid
from kernelgen.codegen.families.scan_roles import ApartRoles
from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.families.triton_conv import ConvTile
from kernelgen.codegen.triton.expressions import rounded, stored, triton_name
from kernelgen.codegen.triton.frame import Frame, Mask
from kernelgen.codegen.triton.kernels import Choice, StepLayout
from kernelgen.codegen.triton.single import single_launch
from kernelgen.codegen.triton.states import state_context, step_constants, whole_rows
from kernelgen.codegen.triton.tile_program import TileProgram
from kernelgen.ir.types import Sizes
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel


def conv_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """A convolution and what finishes its elements, one launch."""
    tile, region, roles = ConvTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, ApartRoles)
    context = conv_context(region, roles, layout)

    def grid(sizes: Sizes) -> Grid:
        requests = min(sizes.tokens, layout.args.max_rows)  # each may leave a tile unfilled
        parts = ceil_div(context["columns"], tile.width)
        return (parts, ceil_div(sizes.tokens, tile.rows) + requests, 1)

    constants = {"TOKENS": tile.rows, "WIDTH": tile.width}
    shape = (tile.warps, 1)
    return single_launch(kernel, why, "short_conv", context, tile, constants, shape, grid)


def conv_context(region: Region, roles: ApartRoles, layout: StepLayout) -> dict[str, Any]:
    """What `triton/short_conv.py.j2` needs."""
    x, weight, state, _rows = roles.anchor.inputs
    taps = region.value(weight).type
    frame = Frame("token", "col", Mask("mine"), Mask("inside"), Mask("live"))
    program = TileProgram(region, frame)
    out, last = roles.anchor.outputs[0], roles.outputs[0]
    program.bind(out, program.let(out, rounded("total", region.value(out).type.dtype)))
    kind = region.value(last).type
    value = stored(program.value(last), kind.dtype)
    at = f"{triton_name(last)} + token * {kind.static_elements} + col"
    program.lines.append(frame.tile.store(at, value))
    return {
        "columns": region.value(x).type.row_width,
        "taps": taps.row_width,
        "back_range": next_power_of_two(taps.row_width - 1),
        "x": whole_rows(region, x),
        "weight": triton_name(region.base(weight)),
        "state": state_context(region, state, layout),
        "words": step_constants(layout),
        "lines": program.lines,
    }
