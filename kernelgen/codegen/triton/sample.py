"""Owns the Triton of the choice of a token: alone, or behind a product that kept candidates."""

from __future__ import annotations

from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel, GpuPass, Pointer
from kernelgen.codegen.cuda.unit import Argument, TritonUnit
from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.families.triton_sample import GROUP, LIST, SampleTile
from kernelgen.codegen.rendering import render
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.triton.expressions import triton_name
from kernelgen.codegen.triton.kernels import (
    Choice,
    Given,
    StepLayout,
    header,
    kernel_arguments,
)
from kernelgen.ir.graph import Node
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.planner.plan import COUNTERS, SCRATCH, Kernel

SAMPLING_FIELDS = (
    "counts",
    "row_slot",
    "row_query_start",
    "row_seq_len",
    "logit_token",
    "logit_row",
    "temperature",
    "top_p",
    "top_k",
    "seed",
)
"""of args, for a kernel that knows how each logit row wants its token"""


def sample_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """The choice alone, in one launch. `why`: the planner's argument, for the header."""
    tile = SampleTile(**choice)
    return GpuKernel((sample_pass(kernel, tile, layout, header(kernel, why)),))


def sample_pass(
    kernel: Kernel, tile: SampleTile, layout: StepLayout, lines: list[str], *, keyed: bool = False
) -> GpuPass:
    """The launch that chooses.

    `keyed`: the product before it has left the largest logit of each greedy row in the counters.
    """
    region = kernel.match.region
    sample = next(n for n in region.nodes if n.op.has(Trait.SAMPLE))
    logits = region.value(sample.inputs[0]).type
    given = _given(kernel, sample)
    function = f"{kernel.name}_choose" if keyed else kernel.name
    text = render(
        "triton/sample.py.j2",
        name=function,
        header=lines,
        parameters=[{"name": g.argument.name, "note": g.note} for g in given],
        logits=triton_name(region.base(sample.inputs[0])),
        sampled=triton_name(sample.outputs[0]),
        keyed=keyed,
        **sample_constants(logits.row_width, tile, layout.args),
    )
    blocks = tile.blocks(logits.row_width)

    def grid(sizes: Sizes) -> tuple[int, int, int]:
        return (blocks, logits.elements(sizes.capacity) // logits.row_width, 1)

    unit = TritonUnit(
        name=f"{function}_c{tile.columns}_p{tile.parts}_w{tile.warps}",
        text=text,
        function=function,
        signature=tuple(g.argument for g in given),
        num_warps=tile.warps,
        num_stages=1,
        pdl=True,
        tile=f"columns {tile.columns}, parts {tile.parts}, warps {tile.warps}",
    )
    return GpuPass(unit, tuple(g.source for g in given), grid)


def _given(kernel: Kernel, sample: Node) -> list[Given]:
    """Logits, chosen ids, scratch, counters, newest tokens of the slots, the step's arguments."""
    region = kernel.match.region
    wanted = [triton_name(region.base(sample.inputs[0])), triton_name(sample.outputs[0])]
    wanted += [SCRATCH, COUNTERS, "args"]
    given = {g.argument.name: g for g in kernel_arguments(kernel)}
    found = [given[name] for name in wanted]
    last = Argument("last_sampled", "*i32", 16)
    found.insert(4, Given(last, Pointer.LAST_SAMPLED, "newest token of each slot"))
    return found


def sample_constants(vocabulary: int, tile: SampleTile, args: ArgsLayout) -> dict[str, Any]:
    """Constants of `triton/sample.py.j2`."""
    blocks, groups = tile.blocks(vocabulary), ceil_div(vocabulary, GROUP)
    return {
        "vocabulary": vocabulary,
        "columns": tile.columns,
        "parts": blocks,
        "parts_range": next_power_of_two(blocks),
        "share": tile.share(vocabulary),
        "group": GROUP,
        "groups": groups,
        "groups_range": next_power_of_two(groups),
        "list": LIST,
        "row_words": tile.row_words(vocabulary),
        "words": sampling_words(args),
    }


def sampling_words(args: ArgsLayout) -> list[tuple[str, int]]:
    """Where the fields start, as constants of a kernel."""
    return [(name.upper(), args.offset(name)) for name in SAMPLING_FIELDS]
