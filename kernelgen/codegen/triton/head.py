"""Owns the Triton of the fused head: a product that keeps its largest logits, and the choice."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel
from kernelgen.codegen.families.roles import HeadRoles
from kernelgen.codegen.families.triton_gemm import GemmTile
from kernelgen.codegen.families.triton_gemv import GemvTile
from kernelgen.codegen.families.triton_head import CORES, head_tile
from kernelgen.codegen.families.triton_skinny import SkinnyTile
from kernelgen.codegen.rendering import render
from kernelgen.codegen.triton.expressions import rounded, stored, triton_name
from kernelgen.codegen.triton.frame import Mask
from kernelgen.codegen.triton.gemv import gemv_context
from kernelgen.codegen.triton.kernels import (
    Choice,
    StepLayout,
    header,
    kernel_arguments,
    triton_kernel,
)
from kernelgen.codegen.triton.product import GEMM, GEMV, SKINNY, Orientation, product_context
from kernelgen.codegen.triton.sample import Maxima, candidate_constants, sample_pass
from kernelgen.codegen.triton.tile_program import TileProgram
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel


@dataclass(frozen=True)
class _Candidates:
    """How a core's finished sums are handed to `keep`, and its answer as a mask of the block."""

    how: Orientation
    block: str
    token: str
    row: str
    axis: int
    mask: str


_CORES = {
    "gemv": _Candidates(
        GEMV, "{0}[:, None]", "col[:, None]", "tl.zeros((1,), tl.int32)", 0, "needed"
    ),
    "skinny": _Candidates(SKINNY, "{0}", "col[:, None]", "row", 0, "needed[None, :]"),
    "gemm": _Candidates(GEMM, "{0}", "col[None, :]", "row", 1, "needed[:, None]"),
}


@dataclass(frozen=True)
class _Core:
    """The product family under whose name the template of a head is found."""

    name: str
    backend: str = "triton"


def head_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Product and choice, two launches. `why`: the planner's argument, for the header."""
    match, tile = kernel.match, head_tile(choice)
    region, roles = match.region, match.roles
    assert isinstance(roles, HeadRoles)
    core = CORES[tile.core][0]
    product = replace(match, family=_Core(core), roles=roles.linear)  # type: ignore[arg-type]
    plain = triton_kernel(replace(kernel, match=product), asdict(tile.inner), layout, why)
    lines, maxima = header(kernel, why), Maxima(tile.group, tile.gathered)
    vocabulary = region.value(roles.sample.inputs[0]).type.row_width
    text = render(
        "triton/head_sample.py.j2",
        core=core,
        name=kernel.name,
        header=lines,
        parameters=[{"name": g.argument.name, "note": g.note} for g in kernel_arguments(kernel)],
        vocabulary=vocabulary,
        **candidate_constants(vocabulary, tile.choose, maxima, layout.args),
        **_product(region, roles, _CORES[core], layout, tile.inner),
    )
    first = plain.passes[0]
    unit = replace(first.unit, text=text)
    chosen = [f"{kernel.name}, second launch: {roles.sample.name}"]
    second = sample_pass(kernel, tile.choose, layout, chosen, maxima)
    return GpuKernel((replace(first, unit=unit), second))


def _product(
    region: Region,
    roles: HeadRoles,
    core: _Candidates,
    layout: StepLayout,
    tile: GemvTile | SkinnyTile | GemmTile,
) -> dict[str, Any]:
    """What the product's template needs; columns go through `keep` and are stored where needed."""
    how, linear = core.how, roles.linear
    context = (
        gemv_context(region, linear, layout.args, tile)
        if isinstance(tile, GemvTile)
        else product_context(region, linear, how, layout.args)
    )
    ((group,),) = (section["groups"] for section in context["sections"])
    group["lines"] = _finish(region, roles, core)
    return context


def _finish(region: Region, roles: HeadRoles, core: _Candidates) -> list[str]:
    """Statements that finish the columns of a tile from `sum0`."""
    (group,), frame = roles.linear.groups, core.how.sums
    program = TileProgram(region, frame)
    product = group.anchors[0].outputs[0]
    text = rounded("sum0", region.value(product).type.dtype)
    program.bind(product, program.let(product, text) if text != "sum0" else text)
    logits = region.base(roles.sample.inputs[0])
    block = core.block.format(program.value(logits))
    handed = [block, "first", core.token, core.row, "count", "args", "scratch", "counters"]
    handed.append(str(core.axis))
    program.lines += [
        f"needed = keep({', '.join(handed)})",
        "needed = tl.max(needed.to(tl.int32), 0) > 0"
        if core.axis == 0 and core.mask == "needed"
        else "",
        f"stored = mine & {core.mask}",
    ]
    width = region.value(logits).type.row_width
    for out in group.outputs:
        dtype = region.value(out).type.dtype
        pointer = f"{triton_name(out)} + {frame.row} * {width} + {frame.column}"
        program.lines.append(Mask("stored").store(pointer, stored(program.value(out), dtype)))
    return [line for line in program.lines if line]
