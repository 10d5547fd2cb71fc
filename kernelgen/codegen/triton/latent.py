"""Owns the Triton of attention over latent rows: decode in parts with their merge, and prompts."""

from __future__ import annotations

import math
from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel, GpuPass, Grid
from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.codegen.families.scan_roles import ApartRoles
from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.families.triton_latent import LatentTile
from kernelgen.codegen.families.triton_latent_prefill import WalkTile, heads_of_a_block
from kernelgen.codegen.rendering import render
from kernelgen.codegen.triton.expressions import PRECISE, triton_name, triton_type
from kernelgen.codegen.triton.kernels import Choice, StepLayout, kernel_arguments
from kernelgen.codegen.triton.single import declared, single_launch
from kernelgen.codegen.triton.states import step_constants, whole_rows
from kernelgen.core.dtypes import FLOAT32
from kernelgen.ir.types import Sizes
from kernelgen.ops import LatentAttention
from kernelgen.planner.caches import PAGE_TOKENS
from kernelgen.planner.network import Region
from kernelgen.planner.plan import SCRATCH, Kernel

_LEAST_SIDE = 16  # of a tensor core product
_MERGED_AT_ONCE = 8
_MERGE_WARPS = 4


def latent_decode_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Parts of a request's rows, then (where there may be several) their merge."""
    tile, region, roles = LatentTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, ApartRoles)
    context = latent_context(region, roles, layout)
    groups = ceil_div(context["heads"], tile.heads)

    def grid(sizes: Sizes) -> Grid:
        return (groups, tile.splits, sizes.tokens)

    constants = {
        "TOKENS": tile.tokens,
        "LANES": tile.heads,
        "SPLITS": tile.splits,
        "LEAST": tile.least,
    }
    shape = (tile.warps, tile.stages + 1)
    first = single_launch(kernel, why, "latent_decode", context, tile, constants, shape, grid)
    if tile.splits == 1:
        return first
    return GpuKernel((*first.passes, _merge(kernel, tile, context)))


def _merge(kernel: Kernel, tile: LatentTile, context: dict[str, Any]) -> GpuPass:
    """The launch that adds up parts, which needs scratch and the step's arguments alone."""
    wanted = (context["output"], SCRATCH, "args")
    given = {g.argument.name: g for g in kernel_arguments(kernel)}
    found = [given[name] for name in wanted]
    function = f"{kernel.name}_merge"
    text = render(
        "triton/latent_merge.py.j2",
        name=function,
        header=[f"{kernel.name}, second launch: parts of a request's rows become one result"],
        parameters=declared(found),
        **context,
    )
    chunk = min(_MERGED_AT_ONCE, next_power_of_two(tile.splits))
    constants = {"TOKENS": tile.tokens, "SPLITS": tile.splits, "LEAST": tile.least, "CHUNK": chunk}
    unit = TritonUnit(
        name=f"{function}_t{tile.tokens}_s{tile.splits}_l{tile.least}",
        text=text,
        function=function,
        signature=tuple(g.argument for g in found),
        constants=tuple(constants.items()),
        num_warps=_MERGE_WARPS,
        num_stages=1,
        pdl=True,
    )
    heads = context["heads"]
    return GpuPass(unit, tuple(g.source for g in found), lambda sizes: (heads, sizes.tokens, 1))


def latent_prefill_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Attention of a mixed step, one launch."""
    tile, region, roles = WalkTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, ApartRoles)
    context = latent_context(region, roles, layout)
    context["group"] = heads_of_a_block(context["heads"], tile.rows)
    queries = tile.rows // context["group"]

    def grid(sizes: Sizes) -> Grid:
        requests = min(sizes.tokens, layout.args.max_rows)  # each may leave a tile unfilled
        return (
            context["heads"] // context["group"],
            ceil_div(sizes.tokens, queries) + requests,
            1,
        )

    constants = {"SIDE": tile.rows, "TOKENS": tile.tokens}
    shape = (tile.warps, 2 * tile.stages - 1)
    return single_launch(kernel, why, "latent_prefill", context, tile, constants, shape, grid)


def latent_context(region: Region, roles: ApartRoles, layout: StepLayout) -> dict[str, Any]:
    """Sizes and names that all templates of latent rows need."""
    op, (inner, outer, state, _rows) = roles.anchor.op, roles.anchor.inputs
    assert isinstance(op, LatentAttention)
    queries, cache = region.value(inner).type, region.value(state).type
    rank, width = queries.row_width, cache.row_width
    size = cache.dtype.bits // 8
    return {
        "page_tokens": PAGE_TOKENS,
        "page_elements": layout.cache.page_bytes // size,
        "cache_bytes": size,
        "cache": triton_type(cache.dtype),
        "precision": PRECISE if cache.dtype == FLOAT32 else "",
        "heads": queries.static_elements // rank,
        "rank": rank,
        "rank_range": max(_LEAST_SIDE, next_power_of_two(rank)),
        "beside": width - rank,
        "beside_range": max(_LEAST_SIDE, next_power_of_two(max(1, width - rank))),
        "query": region.value(outer).type.row_width,
        "inner": whole_rows(region, inner),
        "outer": whole_rows(region, outer),
        "state": triton_name(region.base(state)),
        "scale_log2": repr(op.scale * math.log2(math.e)),
        "output": triton_name(roles.outputs[0]),
        "words": [
            *step_constants(layout, states=False),
            ("MAX_PAGES", layout.args.max_pages),
        ],
    }
