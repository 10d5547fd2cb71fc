"""Owns the Triton of routed experts pair by pair: choice, products, sum, a product beside it."""

from __future__ import annotations

from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel, Grid
from kernelgen.codegen.families.expert_roles import ExpertRoles
from kernelgen.codegen.families.triton_block import WARP, ceil_div
from kernelgen.codegen.families.triton_experts_pairs import PairsTile
from kernelgen.codegen.triton.experts import experts_context
from kernelgen.codegen.triton.expressions import triton_name
from kernelgen.codegen.triton.frame import Frame, Mask
from kernelgen.codegen.triton.kernels import Choice, StepLayout
from kernelgen.codegen.triton.order import ahead, late
from kernelgen.codegen.triton.route import route_context
from kernelgen.codegen.triton.single import single_launch
from kernelgen.ir.types import Sizes
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel

_MOST_TOGETHER = 6
_COMPARED = 32
"""comparisons of a thread that take less time than two rounds of a choice, two sums each"""
_PAIR = Frame("row", "col", Mask("mine"), Mask("mine"), Mask("live"))


def pairs_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Products pair by pair, one launch; with the sum over a token's experts if it is asked."""
    tile, region, roles = PairsTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, ExpertRoles)
    context = experts_context(region, roles, _PAIR)
    rows = 1 if roles.sum else context["top"]

    def grid(sizes: Sizes) -> Grid:
        return (ceil_div(context["n"], tile.outputs), sizes.tokens * rows, 1)

    found = ahead(context["lines"], late(region), ("sum0", "sum1"))
    more: dict[str, Any] = {
        "given": [f"{name} = {text}" for name, text in (*found.early, *found.late)],
        "lines": list(found.work),
        "together": _together(context["top"]),
        "sum": triton_name(region.base(roles.sum.inputs[1])) if roles.sum else "",
        "beside": _beside(region, roles),
        "route": route_context(region, roles.route) if roles.route else None,
    }
    more["ranked"] = bool(roles.route) and ranked(more["route"]["width"], tile.warps)
    constants = {"OUTPUTS": tile.outputs, "DEPTH": tile.depth}
    shape = (tile.warps, 1)
    return single_launch(kernel, why, "experts_pairs", context | more, tile, constants, shape, grid)


def ranked(width: int, warps: int) -> bool:
    """Whether comparing all experts with all others is less than the rounds of a choice."""
    return width * width <= _COMPARED * warps * WARP


def _together(top: int) -> int:
    """Experts of a token whose matrices are asked for together: few rounds, none of them short."""

    def rounds(n: int) -> float:
        return ceil_div(top, n) + 0.25 * (ceil_div(top, n) * n - top)

    return min(range(1, _MOST_TOGETHER + 1), key=rounds)


def _beside(region: Region, roles: ExpertRoles) -> dict[str, Any] | None:
    """The product that meets the sum; its weights do not hang on any choice."""
    if roles.beside is None:
        return None
    x, weight = (region.base(name) for name in roles.beside.inputs)
    k = region.value(weight).type.row_width
    return {"x": triton_name(x), "weight": triton_name(weight), "k": k}
