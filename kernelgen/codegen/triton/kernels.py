"""Owns the step from a planned kernel and its tile to the launches that do its work."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelgen.codegen.cuda.launches import (
    BlockTable,
    GpuKernel,
    GpuPass,
    Grid,
    LayerOffset,
    Operand,
    Parameter,
    Pointer,
)
from kernelgen.codegen.cuda.unit import Argument, TritonUnit
from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.codegen.families.row_prep import row_prep
from kernelgen.codegen.families.row_sections import row_sections
from kernelgen.codegen.families.scan_roles import carried
from kernelgen.codegen.families.triton_block import ceil_div
from kernelgen.codegen.families.triton_clustered import ClusteredTile
from kernelgen.codegen.families.triton_gemm import GemmTile
from kernelgen.codegen.families.triton_gemv import GemvTile
from kernelgen.codegen.families.triton_packed import PackedGemvTile, PackedTile
from kernelgen.codegen.families.triton_rows import RowsTile
from kernelgen.codegen.families.triton_skinny import SkinnyTile
from kernelgen.codegen.families.triton_sliced import SlicedTile
from kernelgen.codegen.families.triton_sliced_packed import SlicedPackedTile
from kernelgen.codegen.rendering import render
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.triton.expressions import element_type, triton_name
from kernelgen.codegen.triton.gemv import gemv_context
from kernelgen.codegen.triton.packed import packed_context
from kernelgen.codegen.triton.product import FEW, GEMM, GEMV, SKINNY, product_context
from kernelgen.codegen.triton.rows import POSITIONS, rows_context
from kernelgen.ir.graph import Role
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.planner.caches import CacheSchema
from kernelgen.planner.network import Region
from kernelgen.planner.plan import COUNTERS, SCRATCH, Kernel

GROUP = 8
"""bands of rows whose blocks run together"""

Roles = Any
Choice = Mapping[str, int]


@dataclass(frozen=True)
class StepLayout:
    """What kernels know of the cache's pages and of the step's arguments."""

    cache: CacheSchema
    args: ArgsLayout


@dataclass(frozen=True)
class Given:
    """One run-time argument of a kernel, and where the step program finds it."""

    argument: Argument
    source: Parameter
    note: str


@dataclass(frozen=True)
class _Tile:
    """A choice as the compiler and the launcher take it."""

    constants: dict[str, int]
    warps: int
    stages: int
    grid: Callable[[Sizes], Grid]
    cluster: int = 1
    exchange_bytes: int = 0


def triton_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Products and row kernels with one tile. `why`: the planner's argument, for the header."""
    match = kernel.match
    family, region = match.family.name, match.region
    given = kernel_arguments(kernel)
    text = render(
        f"triton/{family}.py.j2",
        name=kernel.name,
        header=header(kernel, why),
        parameters=[{"name": g.argument.name, "note": g.note} for g in given],
        **_CONTEXTS[family](region, match.roles, layout, choice),
    )
    tile = _TILES[family](region, match.roles, choice)
    unit = TritonUnit(
        name=f"{kernel.name}_{_tag(tile)}",
        text=text,
        function=kernel.name,
        signature=tuple(g.argument for g in given),
        constants=tuple(tile.constants.items()),
        num_warps=tile.warps,
        num_stages=tile.stages,
        pdl=True,
        tile=", ".join(f"{key} {value}" for key, value in choice.items()),
        cluster=tile.cluster,
        exchange_bytes=tile.exchange_bytes,
    )
    return GpuKernel((GpuPass(unit, tuple(g.source for g in given), tile.grid),))


def kernel_arguments(kernel: Kernel) -> tuple[Given, ...]:
    """Operands in order, then the step's arguments.

    A state is followed by its layer's place in a page and, where it is kept for each token, by the
    block table of its group.
    """
    region = kernel.match.region
    of_requests = carried(region)
    found: list[Given] = []
    for number, name in enumerate(kernel.signature):
        if name in (SCRATCH, COUNTERS):
            type_ = "*u8" if name == SCRATCH else "*i32"
            found.append(Given(Argument(name, type_, 16), Operand(number), "of this launch"))
            continue
        value, clean = region.value(name), triton_name(name)
        argument = Argument(clean, f"*{element_type(value.type.dtype)}", 16)
        if value.role is not Role.STATE:
            found.append(Given(argument, Operand(number), str(value.type)))
            continue
        if name in of_requests:
            place = Argument(f"{clean}_offset", "i64", 16)
            found += [
                Given(argument, Operand(number), "pages of requests"),
                Given(place, LayerOffset(number), "bytes, of this state in a page"),
            ]
            continue
        found += [
            Given(argument, Operand(number), "pages"),
            Given(
                Argument(f"{clean}_offset", "i64", 16),
                LayerOffset(),
                "bytes, of this layer in a page",
            ),
            Given(Argument(f"{clean}_table", "*i32", 16), BlockTable(), "pages of each request"),
        ]
    stores = any(not n.op.has(Trait.SCAN) for n in region.with_trait(Trait.STATE_WRITE))
    if stores and "positions" not in kernel.signature:
        found.append(Given(Argument(POSITIONS, "*i32", 16), Pointer.POSITIONS, "of each token"))
    found.append(Given(Argument("args", "*i32", 16), Pointer.ARGS, "the step's arguments"))
    return tuple(found)


def _tag(tile: _Tile) -> str:
    """What tells the variants of one kernel apart: `o16_d1024_w4`."""
    words = [f"{key[0].lower()}{value}" for key, value in tile.constants.items()]
    return "_".join([*words, f"w{tile.warps}", *([f"n{tile.stages}"] if tile.stages > 1 else [])])


def _tiles(region: Region, roles: LinearRoles, outputs: int) -> int:
    widths = (region.value(g.anchors[0].outputs[0]).type.row_width for g in roles.groups)
    return sum(ceil_div(width, outputs) for width in widths)


def _gemv(region: Region, roles: LinearRoles, choice: Choice) -> _Tile:
    tile = GemvTile(**choice)
    tiles = _tiles(region, roles, tile.outputs)
    grid = (min(tiles, tile.blocks or tiles) + roles.keeps, 1, 1)
    constants = {"OUTPUTS": tile.outputs, "DEPTH": tile.depth}
    if rest := tile.rest(roles.k):
        constants["REST"] = rest
    return _Tile(constants, tile.warps, 1, lambda sizes: grid)


def _sliced(region: Region, roles: LinearRoles, choice: Choice) -> _Tile:
    tile = SlicedTile(**choice)
    constants = {
        "ROWS": tile.rows,
        "OUTPUTS": tile.outputs,
        "DEPTH": tile.depth,
        "SLICES": tile.warps,
    }
    grid = (_tiles(region, roles, tile.outputs), 1, 1)
    return _Tile(constants, tile.warps, 1, lambda sizes: grid)


def _clustered(region: Region, roles: LinearRoles, choice: Choice) -> _Tile:
    tile, prep = ClusteredTile(**choice), row_prep(region, roles)
    matrices = max(len(group.weights) for group in roles.groups)
    exchange = tile.exchange_bytes(matrices, prep.summed if prep else 0)
    constants = {
        "ROWS": tile.rows,
        "OUTPUTS": tile.outputs,
        "DEPTH": tile.depth,
        "CLUSTER": tile.cluster,
        "EXCHANGE": exchange,
    }
    grid = (_tiles(region, roles, tile.outputs) * tile.cluster, 1, 1)
    return _Tile(constants, tile.warps, 1, lambda sizes: grid, tile.cluster, exchange)


def _skinny(region: Region, roles: LinearRoles, choice: Choice) -> _Tile:
    tile = SkinnyTile(**choice)
    constants = {
        "ROWS": tile.rows,
        "OUTPUTS": tile.outputs,
        "DEPTH": tile.depth,
        "SPLITS": tile.splits,
        "AHEAD": tile.ahead,
    }
    grid = (_tiles(region, roles, tile.outputs), tile.splits, 1)
    return _Tile(constants, tile.warps, tile.stages, lambda sizes: grid)


def _gemm(region: Region, roles: LinearRoles, choice: Choice) -> _Tile:
    tile, x = GemmTile(**choice), region.value(roles.x).type
    tiles = _tiles(region, roles, tile.outputs)

    def grid(sizes: Sizes) -> Grid:
        rows = x.elements(sizes.capacity) // x.row_width
        return (ceil_div(rows, tile.rows) * tiles, 1, 1)

    constants = {"ROWS": tile.rows, "OUTPUTS": tile.outputs, "DEPTH": tile.depth, "GROUP": GROUP}
    return _Tile(constants, tile.warps, tile.stages, grid)


def _gemv_packed(region: Region, roles: LinearRoles, choice: Choice) -> _Tile:
    tile = PackedGemvTile(**choice)
    grid = (_tiles(region, roles, tile.outputs), 1, 1)
    constants = {"OUTPUTS": tile.outputs, "DEPTH": tile.depth}
    return _Tile(constants, tile.warps, 1, lambda sizes: grid)


def _sliced_packed(region: Region, roles: LinearRoles, choice: Choice) -> _Tile:
    tile = SlicedPackedTile(**choice)
    grid = (_tiles(region, roles, tile.outputs), 1, 1)
    constants = {
        "ROWS": tile.rows,
        "OUTPUTS": tile.outputs,
        "SLICES": tile.warps,
        "UNITS": tile.steps,
        "AHEAD": tile.ahead,
    }
    return _Tile(constants, tile.warps, 1, lambda sizes: grid)


def _packed(region: Region, roles: LinearRoles, choice: Choice) -> _Tile:
    tile, x = PackedTile(**choice), region.value(roles.x).type
    tiles = _tiles(region, roles, tile.outputs)

    def grid(sizes: Sizes) -> Grid:
        rows = x.elements(sizes.capacity) // x.row_width
        return (ceil_div(rows, tile.rows), tiles, 1)

    constants = {"ROWS": tile.rows, "OUTPUTS": tile.outputs, "DEPTH": tile.depth}
    return _Tile(constants, tile.warps, tile.stages, grid)


def _rows(region: Region, roles: Roles, choice: Choice) -> _Tile:
    tile, sections = RowsTile(**choice), row_sections(region)

    def grid(sizes: Sizes) -> Grid:
        blocks = (s.blocks(sizes.capacity, tile.rows, tile.width) for s in sections)
        return (max(blocks), len(sections), 1)

    return _Tile({"ROWS": tile.rows, "WIDTH": tile.width}, tile.warps, 1, grid)


_TILES: Mapping[str, Callable[[Region, Roles, Choice], _Tile]] = {
    "gemv": _gemv,
    "sliced": _sliced,
    "clustered": _clustered,
    "skinny": _skinny,
    "gemm": _gemm,
    "packed": _packed,
    "gemv_packed": _gemv_packed,
    "sliced_packed": _sliced_packed,
    "rows": _rows,
}
_CONTEXTS: Mapping[str, Callable[[Region, Roles, StepLayout, Choice], dict[str, Any]]] = {
    "gemv": lambda region, roles, layout, choice: gemv_context(
        region, roles, layout.args, GemvTile(**choice)
    ),
    "sliced": lambda region, roles, layout, _: product_context(region, roles, SKINNY, layout.args),
    "clustered": lambda region, roles, layout, _: product_context(
        region, roles, SKINNY, layout.args
    ),
    "skinny": lambda region, roles, layout, _: product_context(region, roles, SKINNY, layout.args),
    "gemm": lambda region, roles, layout, _: product_context(region, roles, GEMM, layout.args),
    "packed": lambda region, roles, layout, _: packed_context(region, roles, SKINNY, layout.args),
    "gemv_packed": lambda region, roles, layout, _: packed_context(
        region, roles, GEMV, layout.args
    ),
    "sliced_packed": lambda region, roles, layout, choice: packed_context(
        region, roles, FEW, layout.args, choice["steps"], choice["ahead"]
    ),
    "rows": lambda region, roles, layout, _: rows_context(region, layout.cache, layout.args),
}


def header(kernel: Kernel, why: tuple[str, ...]) -> list[str]:
    """What is computed, and why these ops share a kernel."""
    lines = [f"{kernel.name}: {', '.join(kernel.ops)}"]
    if why:
        lines.append("")
    for reason in why:
        lines += textwrap.wrap(reason, width=96, subsequent_indent="  ")
    return lines
