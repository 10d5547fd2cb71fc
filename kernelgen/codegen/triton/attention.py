"""Owns the Triton of attention: printed query preparation and (in decode) the insert of the newest key and value."""

from __future__ import annotations

import math
from typing import Any

from kernelgen.codegen.families.roles import AttentionRoles
from kernelgen.codegen.families.triton_block import next_power_of_two
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.triton.expressions import triton_name, triton_type
from kernelgen.codegen.triton.frame import Frame, Mask
from kernelgen.codegen.triton.tile_program import TileProgram
from kernelgen.core.dtypes import FLOAT32
from kernelgen.ops import Attention
from kernelgen.planner.caches import PAGE_TOKENS, CacheSchema
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel

_LINE_BYTES = 128  # of the L2 cache
_LEAST_SIDE = 16  # rows of a tensor core product
_PRECISE = ', input_precision="ieee"'
"""float32 caches are multiplied as float32, not rounded to tf32 on their way to tensor cores"""


def attention_context(kernel: Kernel, cache: CacheSchema, args: ArgsLayout) -> dict[str, Any]:
    """What both attention templates need: sizes, words of args, names, and the query's statements.

    A state of the signature becomes three parameters: pages as the cache's dtype, `<name>_offset` (bytes of this layer's place in
    a page, int64, a multiple of 64), and `<name>_table` (block table of the layer's group inside args, int32).
    """
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, AttentionRoles)
    op = roles.anchor.op
    assert isinstance(op, Attention)
    query = region.value(roles.anchor.inputs[0]).type
    state = roles.insert.inputs[0] if roles.insert else roles.anchor.inputs[1]
    entry = region.value(state).type
    size, dim, wide = entry.dtype.bits // 8, query.row_width, next_power_of_two(query.row_width)
    heads, kv_heads = query.static_elements // dim, entry.static_elements // dim
    assert dim % (16 // size) == 0, "rows of keys are whole 16-byte words"
    return {
        "parameters": attention_parameters(kernel),
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
        "cache": triton_type(entry.dtype),
        "cache_bytes": size,
        "precision": _PRECISE if entry.dtype == FLOAT32 else "",
        "state": triton_name(region.base(state)),
        "sinks": triton_name(region.base(roles.anchor.inputs[3])) if op.sinks else "",
        "output": triton_name(roles.anchor.outputs[0]),
        "words": _words(args),
    }


def decode_context(kernel: Kernel, cache: CacheSchema, args: ArgsLayout) -> dict[str, Any]:
    """What `triton/attention_decode.py.j2` needs."""
    context = attention_context(kernel, cache, args)
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, AttentionRoles)
    taken: set[str] = set()
    inside = Mask("(i < DIM)" if context["dim"] != context["wide"] else "")

    def printed(name: str, head: str) -> tuple[str, list[str]]:
        program = TileProgram(region, Frame("t", "i", inside, inside, Mask(), head), taken)
        return program.value(name), program.lines

    context["q"], context["query"] = printed(roles.anchor.inputs[0], "head")
    context["keys"] = context["values"] = ()
    if roles.insert:
        context["k"], context["keys"] = printed(roles.insert.inputs[1], "kv_head")
        context["v"], context["values"] = printed(roles.insert.inputs[2], "kv_head")
    return context


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


def attention_parameters(kernel: Kernel) -> list[str]:
    """Names of the run-time parameters before `args`, in the order of the signature."""
    region = kernel.match.region
    found: list[str] = []
    for name in kernel.signature:
        if name in ("scratch", "counters"):
            found.append(name)
            continue
        found.append(triton_name(name))
        if _is_state(region, name):
            found += [f"{found[-1]}_offset", f"{found[-1]}_table"]
    return found


def _is_state(region: Region, name: str) -> bool:
    return region.value(name).role.value == "state"


def _words(args: ArgsLayout) -> list[tuple[str, int]]:
    """Constants of a kernel that reads args: where fields start, and their capacities."""
    fields = ("counts", "row_slot", "row_query_start", "row_seq_len")
    found = [(name.upper(), args.offset(name)) for name in fields]
    return [*found, ("ROWS", next_power_of_two(args.max_rows)), ("MAX_PAGES", args.max_pages)]
