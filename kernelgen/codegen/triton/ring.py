"""Owns the Triton (Gluon) of products through a ring: descriptors, the epilogue printed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel, GpuPass
from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.codegen.families.triton_block import ceil_div
from kernelgen.codegen.families.triton_ring import WARPS, RingTile
from kernelgen.codegen.rendering import render
from kernelgen.codegen.triton.expressions import triton_name
from kernelgen.codegen.triton.gemm_tma import described
from kernelgen.codegen.triton.kernels import Choice, StepLayout, header
from kernelgen.codegen.triton.product import SKINNY, product_context
from kernelgen.planner.plan import Kernel

_ASSIGNED = re.compile(r"(\w+) = (.*)")


def ring_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Products of few rows. `why`: the planner's argument, for the header."""
    region, roles, tile = kernel.match.region, kernel.match.roles, RingTile(**choice)
    assert isinstance(roles, LinearRoles)
    given = described(kernel, roles, tile.rows, tile.outputs, tile.depth)
    context = product_context(region, roles, SKINNY, layout.args)
    (section,) = context["sections"]
    statistics = context["rows"]["statistics"]
    text = render(
        "triton/ring.py.j2",
        name=kernel.name,
        header=header(kernel, why),
        parameters=[{"name": g.argument.name, "note": g.note} for g in given],
        x=triton_name(region.base(roles.x)),
        early=_early(section["groups"]),
        whole_scale=_whole(context["rows"]["scale"], [s["value"] for s in statistics]),
        **context,
    )
    widths = [region.value(g.anchors[0].outputs[0]).type.row_width for g in roles.groups]
    tiles = sum(ceil_div(width, tile.outputs) for width in widths)
    exchange = tile.exchange_bytes(section["matrices"], len(statistics))
    constants = {
        "ROWS": tile.rows,
        "OUTPUTS": tile.outputs,
        "DEPTH": tile.depth,
        "STAGES": tile.stages,
        "CLUSTER": tile.cluster,
        "BLOCKS": tile.clusters(tiles),
        "EXCHANGE": exchange,
    }
    unit = TritonUnit(
        name="_".join([kernel.name, *(f"{name[0]}{value}" for name, value in choice.items())]),
        text=text,
        function=kernel.name,
        signature=tuple(g.argument for g in given),
        constants=tuple(constants.items()),
        num_warps=WARPS,
        pdl=True,
        tile=", ".join(f"{name} {value}" for name, value in choice.items()),
        cluster=tile.cluster,
        exchange_bytes=exchange,
    )
    grid = (tile.clusters(tiles) * tile.cluster, 1, 1)
    return GpuKernel((GpuPass(unit, tuple(g.source for g in given), lambda sizes: grid),))


def _early(groups: Sequence[dict[str, Any]]) -> list[str]:
    """Statements that do not wait for sums, taken out of the only group: a residual is loaded while
    the weights are still on their way.
    """
    if len(groups) > 1:
        return []
    late = {"sum0", "sum1"}
    early: list[str] = []
    kept: list[str] = []
    for line in groups[0]["lines"]:
        assigned = _ASSIGNED.fullmatch(line)
        if assigned and not late & set(re.findall(r"\w+", assigned[2])):
            early.append(line)
            continue
        if assigned:
            late.add(assigned[1])
        kept.append(line)
    groups[0]["lines"] = kept
    return early


def _whole(scale: str, statistics: Sequence[str]) -> str:
    """The scale of a row by its statistics over all of K."""
    for name in statistics:
        scale = re.sub(rf"\b{name}\b", f"{name}_all", scale)
    return scale
