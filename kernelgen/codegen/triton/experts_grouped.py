"""Owns the Triton of few routed experts by expert: one launch, blocks find their pairs."""

from __future__ import annotations

from kernelgen.codegen.cuda.launches import GpuKernel, Grid
from kernelgen.codegen.families.expert_roles import ExpertRoles
from kernelgen.codegen.families.triton_block import ceil_div
from kernelgen.codegen.families.triton_experts import experts_format
from kernelgen.codegen.families.triton_experts_grouped import GroupedTile
from kernelgen.codegen.triton.experts import experts_context, narrow
from kernelgen.codegen.triton.experts_sorted import BAND, PACKED_BAND
from kernelgen.codegen.triton.kernels import Choice, StepLayout
from kernelgen.codegen.triton.single import single_launch
from kernelgen.ir.types import Sizes
from kernelgen.planner.plan import Kernel

_LINE_BYTES = 128


def grouped_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Products of all pairs of an expert, a block for each expert and its columns."""
    tile, region, roles = GroupedTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, ExpertRoles)
    packed = experts_format(region, roles) is not None
    context = experts_context(region, roles, PACKED_BAND if packed else BAND)
    stored = region.value(roles.stacks[0]).type.dtype
    context |= {"exact": not narrow(region, roles), "line": _LINE_BYTES * 8 // stored.bits}
    blocks = ceil_div(context["n"], tile.outputs) * (context["experts"] + 1)

    def grid(sizes: Sizes) -> Grid:
        return (blocks, 1, 1)

    constants = {
        "ROWS": tile.rows,
        "OUTPUTS": tile.outputs,
        "DEPTH": tile.depth,
        "PAIRS": tile.pairs,
        "AHEAD": tile.ahead,
    }
    shape = (tile.warps, tile.stages)
    return single_launch(kernel, why, "experts_grouped", context, tile, constants, shape, grid)
