"""Owns the launch of a kernel that is one template and one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel, GpuPass, Grid
from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.codegen.families.triton_choice import tile_text
from kernelgen.codegen.rendering import render
from kernelgen.codegen.triton.kernels import Given, header, kernel_arguments
from kernelgen.ir.types import Sizes
from kernelgen.planner.plan import Kernel


def single_launch(
    kernel: Kernel,
    why: tuple[str, ...],
    template: str,
    context: Mapping[str, Any],
    tile: object,
    constants: Mapping[str, int],
    shape: tuple[int, int],
    grid: Callable[[Sizes], Grid],
) -> GpuKernel:
    """The one launch of a template. `tile`: what planning excludes where its code spills; `shape`:
    warps and stages.
    """
    given = kernel_arguments(kernel)
    text = render(
        f"triton/{template}.py.j2",
        name=kernel.name,
        header=header(kernel, why),
        parameters=declared(given),
        **context,
    )
    words = [f"{key[0].lower()}{value}" for key, value in constants.items()]
    unit = TritonUnit(
        name="_".join([kernel.name, *words, f"w{shape[0]}", f"n{shape[1]}"]),
        text=text,
        function=kernel.name,
        signature=tuple(g.argument for g in given),
        constants=tuple(constants.items()),
        num_warps=shape[0],
        num_stages=shape[1],
        pdl=True,
        tile=tile_text(tile),
    )
    return GpuKernel((GpuPass(unit, tuple(g.source for g in given), grid),))


def declared(given: Sequence[Given]) -> list[dict[str, str]]:
    """Parameters as templates print them."""
    return [{"name": g.argument.name, "note": g.note} for g in given]
