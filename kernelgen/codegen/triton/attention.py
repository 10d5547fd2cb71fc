"""Owns the Triton of attention: printed queries and, in decode, the insert of the newest entry."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel, GpuPass, Grid
from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.codegen.families.roles import AttentionRoles
from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.families.triton_decode import COPIES, DecodeTile
from kernelgen.codegen.families.triton_prefill import PrefillTile
from kernelgen.codegen.rendering import render
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.triton.expressions import PRECISE, triton_name, triton_type
from kernelgen.codegen.triton.frame import Frame, Mask
from kernelgen.codegen.triton.kernels import Choice, StepLayout, header, kernel_arguments
from kernelgen.codegen.triton.order import in_order, late
from kernelgen.codegen.triton.tile_program import TileProgram
from kernelgen.core.dtypes import BFLOAT16, FLOAT8, FLOAT32, DType
from kernelgen.ir.types import Sizes
from kernelgen.ops import Attention
from kernelgen.planner.caches import PAGE_TOKENS, CacheSchema
from kernelgen.planner.plan import Kernel

_LINE_BYTES = 128  # of the L2 cache
_LEAST_SIDE = 16  # rows of a tensor core product
_LOWERED = 64.0  # times a query that is multiplied as float16
_MERGED_AT_ONCE = 8192  # elements of partial results that a block holds
FIXED = "attention_fixed"
"""the family whose steps of keys lie at the same places for every query"""
_POSITION = {"positions": "position"}
_FIELDS = ("counts", "row_slot", "row_query_start", "row_seq_len")


def decode_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Attention of a decode step. `why`: the planner's argument, for the header."""
    tile, context = DecodeTile(**choice), decode_context(kernel, layout.cache, layout.args)

    def grid(sizes: Sizes) -> Grid:
        return (tile.splits, context["kv_heads"], sizes.tokens)

    lanes, wide = context["lanes"], context["wide"]
    merged, columns = tile.splits // tile.cluster, lanes * wide // tile.cluster
    constants = {
        "TOKENS": tile.tokens,
        "SPLITS": tile.splits,
        "LEAST": tile.least,
        "CHUNK": min(_MERGED_AT_ONCE // columns, next_power_of_two(merged)),
    }
    exchange = 4 * lanes * (wide + tile.cluster) if tile.cluster > 1 else 0
    context["clusters"] = tile.cluster > 1
    if exchange:
        constants |= {"CLUSTER": tile.cluster, "EXCHANGE": exchange}
    # The page numbers of a step are loaded half of the stages ahead of its keys and values.
    unit = _unit(kernel, choice, context, why, constants, tile.warps, 2 * tile.stages + 1)
    unit = replace(unit, cluster=tile.cluster, exchange_bytes=exchange)
    return GpuKernel((GpuPass(unit, tuple(g.source for g in kernel_arguments(kernel)), grid),))


def prefill_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Attention of a mixed step, or of any step of a batch-invariant plan. `why`: the planner's
    argument, for the header.
    """
    tile, context = PrefillTile(**choice), prefill_context(kernel, layout.cache, layout.args)
    context["fixed"] = kernel.match.family.name == FIXED
    queries = tile.rows // context["group"]

    def grid(sizes: Sizes) -> Grid:
        requests = min(sizes.tokens, layout.args.max_rows)  # each may leave a tile unfilled
        return (context["kv_heads"], ceil_div(sizes.tokens, queries) + requests, 1)

    constants = {"SIDE": tile.rows, "TOKENS": tile.tokens}
    unit = _unit(kernel, choice, context, why, constants, tile.warps, 2 * tile.stages - 1)
    unit = replace(unit, spills_on=(90,) if tile.may_spill else ())
    return GpuKernel((GpuPass(unit, tuple(g.source for g in kernel_arguments(kernel)), grid),))


def _unit(
    kernel: Kernel,
    choice: Choice,
    context: dict[str, Any],
    why: tuple[str, ...],
    constants: dict[str, int],
    warps: int,
    stages: int,
) -> TritonUnit:
    given = kernel_arguments(kernel)
    template = "attention_prefill" if "query" in context else "attention_decode"
    text = render(
        f"triton/{template}.py.j2",
        name=kernel.name,
        header=header(kernel, why),
        parameters=[{"name": g.argument.name, "note": g.note} for g in given],
        **context,
    )
    tag = "_".join(f"{name[0]}{value}" for name, value in choice.items())
    return TritonUnit(
        name=f"{kernel.name}_{tag}",
        text=text,
        function=kernel.name,
        signature=tuple(g.argument for g in given),
        constants=tuple(constants.items()),
        num_warps=warps,
        num_stages=stages,
        pdl=True,
        tile=", ".join(f"{name} {value}" for name, value in choice.items()),
    )


def attention_context(kernel: Kernel, cache: CacheSchema, args: ArgsLayout) -> dict[str, Any]:
    """What both attention templates need: sizes, words of args and names."""
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, AttentionRoles)
    op = roles.anchor.op
    assert isinstance(op, Attention)
    query = region.value(roles.anchor.inputs[0]).type
    state = roles.insert.inputs[0] if roles.insert else roles.anchor.inputs[1]
    entry = region.value(state).type
    size, dim, wide = entry.dtype.bits // 8, query.row_width, next_power_of_two(query.row_width)
    heads, kv_heads = query.static_elements // dim, entry.static_elements // dim
    product = op.dtype if entry.dtype == FLOAT8 else entry.dtype
    return {
        "page_tokens": PAGE_TOKENS,
        "page_elements": cache.page_bytes // size,
        "heads": heads,
        "kv_heads": kv_heads,
        "group": heads // kv_heads,
        "lanes": next_power_of_two(heads // kv_heads),
        "side": max(_LEAST_SIDE, next_power_of_two(heads // kv_heads)),
        "dim": dim,
        "wide": wide,
        "lines": next_power_of_two(max(1, -(-dim * size // _LINE_BYTES))),
        "line": min(_LINE_BYTES // size, wide),
        "scale_log2": repr(op.scale * math.log2(math.e)),
        "window": op.window or 0,
        "cache_bytes": size,
        "precision": PRECISE if product == FLOAT32 else "",
        **_narrow(entry.dtype, product),
        "scales": triton_name(region.base(roles.anchor.inputs[3 + op.sinks])) if op.scaled else "",
        "state": triton_name(region.base(state)),
        "sinks": triton_name(region.base(roles.anchor.inputs[3])) if op.sinks else "",
        "output": triton_name(roles.anchor.outputs[0]),
        "words": _words(args),
    }


def _narrow(cache: DType, product: DType) -> dict[str, Any]:
    """Texts that an 8-bit cache adds: its scales, and what its numbers are multiplied as.

    Beside bfloat16 activations that is float16: instructions make it of e4m3. Queries are lowered
    there, so that its range holds them.
    """
    float8 = cache == FLOAT8
    half = float8 and product == BFLOAT16
    return {
        "cache": "tl.float16" if half else triton_type(product),
        "lower": f" * {1 / _LOWERED}" if half else "",
        "lowered": f"{_LOWERED} * " if half else "",
        "float8": float8,
        "scale": "of_keys" if float8 else "SCALE",
        "of_keys": ", of_keys" if float8 else "",
        "of_values": ", of_values" if float8 else "",
        "widen": "" if half or not float8 else f".to({triton_type(product)})",
    }


def decode_context(kernel: Kernel, cache: CacheSchema, args: ArgsLayout) -> dict[str, Any]:
    """What `triton/attention_decode.py.j2` needs."""
    context = attention_context(kernel, cache, args)
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, AttentionRoles)
    inside = "(i < DIM)" if context["dim"] != context["wide"] else ""
    newest = Mask(f"(newest & {inside})" if inside else "newest")
    program = TileProgram(region, _frame(Mask(inside), inside, "head"), known=_POSITION)
    context["q"] = program.value(roles.anchor.inputs[0])
    context["copies"] = COPIES
    context["masked_sends"] = True
    context["keys"] = roles.insert is not None
    if roles.insert:
        program = replace(program, frame=_frame(newest, inside, "kv_head"), names={})
        context["k"], context["v"] = (program.value(name) for name in roles.insert.inputs[1:3])
    context |= vars(in_order(program.lines, late(region)))
    return context


def _frame(tile: Mask, inside: str, head: str) -> Frame:
    return Frame("t", "i", tile, Mask(inside), Mask(), head)


def prefill_context(kernel: Kernel, cache: CacheSchema, args: ArgsLayout) -> dict[str, Any]:
    """What `triton/attention_prefill.py.j2` needs."""
    context = attention_context(kernel, cache, args)
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, AttentionRoles)
    wide = context["dim"] == context["wide"]
    tile = Mask("there" if wide else "(there & (i < DIM))")
    vector = Mask("" if wide else "(i < DIM)")
    program = TileProgram(region, Frame("t", "i", tile, vector, Mask("there"), "head"))
    context["q"] = program.value(roles.anchor.inputs[0])
    context["query"] = program.lines
    return context


def _words(args: ArgsLayout) -> list[tuple[str, int]]:
    """Constants of a kernel that reads args: where fields start, and their capacities."""
    found = [(name.upper(), args.offset(name)) for name in _FIELDS]
    return [*found, ("ROWS", next_power_of_two(args.max_rows)), ("MAX_PAGES", args.max_pages)]
