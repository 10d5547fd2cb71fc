"""Owns the Triton of the choice of a token, behind a scan or a product that kept candidates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel, GpuPass, Pointer
from kernelgen.codegen.cuda.unit import Argument, TritonUnit
from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.families.triton_sample import (
    COUNTERS_OF_ROW,
    GROUP,
    LIST,
    MAXIMA_WORD,
    SHORT,
    SHORT_K,
    SHORTEST,
    WIDE,
    SampleTile,
    numbers_word,
)
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
    "min_p",
)
"""of args, for a kernel that knows how each logit row wants its token"""
SEED = "low_seed, high_seed, position"
MARK = "marked, state0, state1, state2, low_key, high_key"
"""what noise follows from, as parameters of a kernel's functions"""


@dataclass(frozen=True)
class Maxima:
    """The list of the largest logits of neighbours that the kernel before has left for each row."""

    group: int = GROUP
    """logits that share one entry"""
    gathered: bool = False
    """whether several blocks have joined in an entry: then they are counters, those of one row"""


def sample_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """The choice alone: a scan, then the choice. `why`: the planner's argument, for the header."""
    tile, lines = SampleTile(**choice), header(kernel, why)
    region, given = kernel.match.region, kernel_arguments(kernel)
    sample = next(n for n in region.nodes if n.op.has(Trait.SAMPLE))
    vocabulary = region.value(sample.inputs[0]).type.row_width
    text = render(
        "triton/candidates.py.j2",
        name=kernel.name,
        header=lines,
        parameters=[{"name": g.argument.name, "note": g.note} for g in given],
        logits=triton_name(region.base(sample.inputs[0])),
        vocabulary=vocabulary,
        columns=tile.columns,
        share=tile.share(vocabulary),
        **candidate_constants(vocabulary, tile, Maxima(), layout.args),
    )
    unit = TritonUnit(
        name=f"{kernel.name}_{_tag(tile)}",
        text=text,
        function=kernel.name,
        signature=tuple(g.argument for g in given),
        num_warps=tile.warps,
        num_stages=1,
        pdl=True,
        tile=_told(tile),
    )
    scan = GpuPass(unit, tuple(g.source for g in given), _grid(kernel, tile))
    chosen = [f"{kernel.name}, second launch: {sample.name}"]
    return GpuKernel((scan, sample_pass(kernel, tile, layout, chosen, Maxima())))


def sample_pass(
    kernel: Kernel, tile: SampleTile, layout: StepLayout, lines: list[str], maxima: Maxima
) -> GpuPass:
    """The launch that chooses, once the one before has left best candidates and `maxima`."""
    region = kernel.match.region
    sample = next(n for n in region.nodes if n.op.has(Trait.SAMPLE))
    logits = region.value(sample.inputs[0]).type
    given = _given(kernel, sample)
    function = f"{kernel.name}_choose"
    text = render(
        "triton/sample.py.j2",
        name=function,
        header=lines,
        parameters=[{"name": g.argument.name, "note": g.note} for g in given],
        logits=triton_name(region.base(sample.inputs[0])),
        sampled=triton_name(sample.outputs[0]),
        **sample_constants(logits.row_width, tile, maxima, layout.args),
    )
    unit = TritonUnit(
        name=f"{function}_{_tag(tile)}_g{maxima.group}{'_gathered' if maxima.gathered else ''}",
        text=text,
        function=function,
        signature=tuple(g.argument for g in given),
        num_warps=tile.warps,
        num_stages=1,
        pdl=True,
        tile=_told(tile),
    )
    return GpuPass(unit, tuple(g.source for g in given), _grid(kernel, tile))


def _tag(tile: SampleTile) -> str:
    return f"c{tile.columns}_p{tile.parts}_w{tile.warps}"


def _told(tile: SampleTile) -> str:
    return f"columns {tile.columns}, parts {tile.parts}, warps {tile.warps}"


def _grid(kernel: Kernel, tile: SampleTile) -> Callable[[Sizes], tuple[int, int, int]]:
    """Blocks of a row, rows that a step may ask for."""
    region = kernel.match.region
    sample = next(n for n in region.nodes if n.op.has(Trait.SAMPLE))
    logits = region.value(sample.inputs[0]).type
    blocks = tile.blocks(logits.row_width)
    return lambda sizes: (blocks, logits.elements(sizes.capacity) // logits.row_width, 1)


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


def candidate_constants(
    vocabulary: int, tile: SampleTile, maxima: Maxima, args: ArgsLayout
) -> dict[str, Any]:
    """Constants of `triton/candidates.j2`: what a kernel leaves for the choice behind it."""
    return {
        "group": maxima.group,
        "short_k": SHORT_K,
        "row_words": tile.row_words(vocabulary, maxima.group),
        "maxima": COUNTERS_OF_ROW if maxima.gathered else MAXIMA_WORD,
        "gathered": maxima.gathered,
        "words": sampling_words(args),
    }


def sample_constants(
    vocabulary: int, tile: SampleTile, maxima: Maxima, args: ArgsLayout, has_rules: bool = False
) -> dict[str, Any]:
    """Constants of `triton/sample.py.j2`. `has_rules`: it chooses for rows with rules alone."""
    blocks, groups = tile.blocks(vocabulary), ceil_div(vocabulary, maxima.group)
    classes, share = tile.classes(vocabulary), tile.share(vocabulary)
    return {
        "vocabulary": vocabulary,
        "columns": tile.columns,
        "parts": blocks,
        "share": share,
        "classes": classes,
        "candidates": next_power_of_two(blocks * classes),
        "members": next_power_of_two(share // classes),
        "wide": min(WIDE, next_power_of_two(vocabulary)),
        "gather": max(maxima.group, tile.columns),
        "groups": groups,
        "groups_range": next_power_of_two(groups),
        "list": LIST,
        "short": SHORT,
        "shortest": SHORTEST,
        "numbers": numbers_word(vocabulary, maxima.group),
        "rules": has_rules,
        "seed": f"{SEED}, {MARK}" if has_rules else SEED,
        **candidate_constants(vocabulary, tile, maxima, args),
    }


def sampling_words(args: ArgsLayout) -> list[tuple[str, int]]:
    """Where the fields start, as constants of a kernel."""
    return [(name.upper(), args.offset(name)) for name in SAMPLING_FIELDS]
