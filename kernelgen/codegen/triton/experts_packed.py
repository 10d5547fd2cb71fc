"""Owns the Triton of few routed experts with packed matrices: pair by pair, or by expert."""

from __future__ import annotations

from kernelgen.codegen.cuda.launches import GpuKernel, Grid
from kernelgen.codegen.families.expert_roles import ExpertRoles
from kernelgen.codegen.families.triton_block import ceil_div
from kernelgen.codegen.families.triton_experts import experts_format
from kernelgen.codegen.families.triton_experts_packed import PackedExpertsTile
from kernelgen.codegen.triton.experts import experts_context
from kernelgen.codegen.triton.experts_pairs import ranked
from kernelgen.codegen.triton.experts_sorted import PACKED_BAND
from kernelgen.codegen.triton.expressions import triton_name
from kernelgen.codegen.triton.kernels import Choice, StepLayout
from kernelgen.codegen.triton.route import route_context
from kernelgen.codegen.triton.single import single_launch
from kernelgen.ir.types import Sizes
from kernelgen.planner.plan import Kernel

_ROWS = {"lines": (), "statistics": (), "text": "tl.load(line + k, mask=real, other=0.0)"}
"""rows as they are stored, of a `line` for each"""


def packed_experts_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Products with packed matrices of chosen experts, one launch."""
    tile, region, roles = PackedExpertsTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, ExpertRoles) and experts_format(region, roles) is not None
    context = experts_context(region, roles, PACKED_BAND)
    route = route_context(region, roles.route) | {"rows": 1} if roles.route else None
    context["packed"] |= {"steps": tile.steps}
    context |= {
        "by_expert": tile.pairs > 0,
        "rows": _ROWS,
        "section": {"matrices": context["matrices"]},
        "sum": triton_name(region.base(roles.sum.inputs[1])) if roles.sum else "",
        "route": route,
        "ranked": route is not None and ranked(route["width"], tile.warps),
    }
    columns = ceil_div(context["n"], tile.outputs)
    experts, top = context["experts"], context["top"]

    def grid(sizes: Sizes) -> Grid:
        single = sizes.tokens * (1 if roles.sum else top)
        return (columns * (experts + 1 if tile.pairs else single), 1, 1)

    constants = {
        "ROWS": tile.rows,
        "OUTPUTS": tile.outputs,
        "SLICES": tile.warps,
        "UNITS": tile.steps,
        "PAIRS": tile.pairs,
    }
    shape = (tile.warps, 1)
    return single_launch(kernel, why, "experts_packed", context, tile, constants, shape, grid)
