"""Owns the Triton of routed experts by expert: pairs are sorted, then products on tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel, GpuPass, Grid
from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.codegen.families.expert_roles import ExpertRoles
from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.families.triton_experts import experts_format
from kernelgen.codegen.families.triton_experts_sorted import (
    ORDER_BLOCK,
    ORDER_WARPS,
    SortedTile,
    most_bands,
    start_words,
)
from kernelgen.codegen.rendering import render
from kernelgen.codegen.triton.experts import experts_context, narrow
from kernelgen.codegen.triton.expressions import triton_name
from kernelgen.codegen.triton.frame import Frame, Mask
from kernelgen.codegen.triton.kernels import Choice, StepLayout, kernel_arguments
from kernelgen.codegen.triton.single import declared, single_launch
from kernelgen.ir.types import Sizes
from kernelgen.planner.plan import SCRATCH, Kernel

BAND = Frame(
    "pair[:, None]", "col[None, :]", Mask("mine"), Mask("(col < N)[None, :]"), Mask("live[:, None]")
)
# Packed: columns are the long side of the tensor cores' product, numbers stay in registers.
PACKED_BAND = Frame(
    "pair[None, :]", "col[:, None]", Mask("mine"), Mask("(col < N)[:, None]"), Mask("live[None, :]")
)


def sorted_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Two launches: pairs sorted by expert, then tiles of pairs of one expert."""
    tile, region, roles = SortedTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, ExpertRoles)
    frame = BAND if experts_format(region, roles) is None else PACKED_BAND
    context = experts_context(region, roles, frame) | {"exact": not narrow(region, roles)}
    experts, top = context["experts"], context["top"]
    context |= {"starts": start_words(experts), "width": next_power_of_two(experts + 2)}
    columns = ceil_div(context["n"], tile.outputs)

    def grid(sizes: Sizes) -> Grid:
        return (columns * most_bands(sizes.tokens * top, experts, tile.rows), 1, 1)

    constants = {"ROWS": tile.rows, "OUTPUTS": tile.outputs, "DEPTH": tile.depth}
    shape = (tile.warps, tile.stages)
    product = single_launch(kernel, why, "experts_sorted", context, tile, constants, shape, grid)
    return GpuKernel((_order(kernel, roles, context), *product.passes))


def _order(kernel: Kernel, roles: ExpertRoles, context: Mapping[str, Any]) -> GpuPass:
    """The launch that sorts, which needs ids, scratch and the step's arguments alone."""
    wanted = (triton_name(kernel.match.region.base(roles.ids)), SCRATCH, "args")
    given = {g.argument.name: g for g in kernel_arguments(kernel)}
    found = [given[name] for name in wanted]
    function = f"{kernel.name}_order"
    text = render(
        "triton/experts_order.py.j2",
        name=function,
        header=[f"{kernel.name}, first launch: pairs of token and expert by expert"],
        parameters=declared(found),
        **{key: context[key] for key in ("experts", "top", "ids", "starts")},
    )
    unit = TritonUnit(
        name=function,
        text=text,
        function=function,
        signature=tuple(g.argument for g in found),
        constants=(("BLOCK", ORDER_BLOCK),),
        num_warps=ORDER_WARPS,
        num_stages=1,
        pdl=True,
    )
    blocks = context["experts"] + 1
    return GpuPass(unit, tuple(g.source for g in found), lambda sizes: (blocks, 1, 1))
