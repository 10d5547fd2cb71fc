"""Owns the Triton of the delta rule over prompts: a launch for chunks, one that walks states."""

from __future__ import annotations

from typing import Any

from kernelgen.codegen.cuda.launches import Constant, GpuKernel, GpuPass, Grid
from kernelgen.codegen.cuda.unit import Argument, TritonUnit
from kernelgen.codegen.families.scan_roles import ApartRoles
from kernelgen.codegen.families.triton_block import ceil_div
from kernelgen.codegen.families.triton_chunks import (
    CHUNK,
    PART,
    WALKERS,
    ChunkTile,
    of_state,
    record_elements,
)
from kernelgen.codegen.rendering import render
from kernelgen.codegen.triton.delta import scan_context
from kernelgen.codegen.triton.expressions import PRECISE, triton_name, triton_type
from kernelgen.codegen.triton.kernels import Choice, Given, StepLayout, header, kernel_arguments
from kernelgen.codegen.triton.single import declared
from kernelgen.codegen.triton.states import number_of_head, whole_rows
from kernelgen.core.dtypes import BFLOAT16, FLOAT32
from kernelgen.ir.types import Sizes
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel

_CAPACITY = Given(Argument("capacity", "i32"), Constant(lambda s: s.tokens), "token rows")


def chunks_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Three launches: what tokens of a chunk do to each other, on the side of keys and values and
    on that of queries, then states from chunk to chunk."""
    tile, region, roles = ChunkTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, ApartRoles)
    context = chunk_context(region, roles, layout)
    heads, values = context["heads"], context["values"]

    def tiles(sizes: Sizes) -> Grid:
        return (heads, sizes.tokens // CHUNK + 2, 1)

    def walks(sizes: Sizes) -> Grid:
        return (heads * ceil_div(values, tile.width), min(sizes.tokens, WALKERS), 1)

    sources = tuple(g.source for g in (*kernel_arguments(kernel), _CAPACITY))
    told = {
        "keys": header(kernel, why),
        "queries": [f"{kernel.name}, second launch: queries of a chunk"],
        "walk": [f"{kernel.name}, third launch: states from chunk to chunk"],
    }
    passes = [
        GpuPass(_launch(kernel, which, told[which], context, tile), sources, grid)
        for which, grid in (("keys", tiles), ("queries", tiles), ("walk", walks))
    ]
    return GpuKernel(tuple(passes))


def _launch(
    kernel: Kernel, which: str, told: list[str], context: dict[str, Any], tile: ChunkTile
) -> TritonUnit:
    given = (*kernel_arguments(kernel), _CAPACITY)
    function, walks = f"{kernel.name}_{which}", which == "walk"
    text = render(
        f"triton/delta_{'walk' if walks else 'chunks'}.py.j2",
        name=function,
        side=which,
        header=told,
        parameters=declared(given),
        **context,
    )
    tag = f"c{tile.width}_v{tile.walkers}_n{tile.stages}_w{tile.warps}"  # refused as one
    return TritonUnit(
        name=f"{function}_{tag}",
        text=text,
        function=function,
        signature=tuple(g.argument for g in given),
        constants=(("WIDTH", tile.width),) if walks else (),
        num_warps=tile.walkers if walks else tile.warps,
        num_stages=tile.stages if walks else 1,
        pdl=True,
        tile=", ".join(f"{name} {value}" for name, value in vars(tile).items()),
    )


def chunk_context(region: Region, roles: ApartRoles, layout: StepLayout) -> dict[str, Any]:
    """What both templates need."""
    anchor = roles.anchor
    context = scan_context(region, anchor, layout)
    q, k, v, f, beta = anchor.inputs[:5]
    kind = region.value(q).type.dtype
    product = BFLOAT16 if kind == BFLOAT16 else FLOAT32
    keys, values = context["keys"], context["values"]
    return context | {
        "chunk": CHUNK,
        "part": PART,
        "parts": CHUNK // PART,
        "keys_range": of_state(keys),
        "values_range": of_state(values),
        "record": record_elements(keys, values),
        "product": triton_type(product),
        "product_bytes": product.bits // 8,
        "exact": product == FLOAT32,
        "precision": PRECISE if product == FLOAT32 else "",
        "q": whole_rows(region, q),
        "k": whole_rows(region, k),
        "v": whole_rows(region, v),
        "f": whole_rows(region, f),
        "beta": number_of_head(region, beta, "t", "head"),
        "output": triton_name(roles.outputs[0]),
        "max_rows": layout.args.max_rows,
    }
