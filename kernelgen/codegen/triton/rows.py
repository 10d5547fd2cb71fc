"""Owns the text of row kernels: ops that each row decides for itself, in sections side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernelgen.codegen.families.row_sections import Section, row_sections
from kernelgen.codegen.families.triton_block import next_power_of_two
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.triton.depth import sums_together
from kernelgen.codegen.triton.expressions import stored, triton_name
from kernelgen.codegen.triton.frame import Frame, Mask
from kernelgen.codegen.triton.product import COUNT_WORDS, step_words
from kernelgen.codegen.triton.tile_program import TileProgram
from kernelgen.ir.graph import Node
from kernelgen.ir.op import Trait
from kernelgen.ops import CacheWrite, LatentWrite
from kernelgen.planner.caches import PAGE_TOKENS, CacheSchema
from kernelgen.planner.network import Region


def rows_context(region: Region, cache: CacheSchema, args: ArgsLayout) -> dict[str, Any]:
    """What `triton/rows.py.j2` needs."""
    sections, taken, words = row_sections(region), set[str](), step_words(args)
    made = [_section(region, section, taken, words) for section in sections]
    for number, section in enumerate(made):
        section["number"] = number
    return {
        "sections": made,
        "count_word": COUNT_WORDS[sections[0].leading],
        "float8": any(isinstance(n.op, CacheWrite) and n.op.scaled for n in region.nodes),
        "sums": sums_together(region.nodes),
        "paged": bool(region.with_trait(Trait.STATE_WRITE)),
        "page_bytes": cache.page_bytes,
        "max_pages": args.max_pages,
    }


def _section(
    region: Region, section: Section, taken: set[str], words: dict[str, int]
) -> dict[str, Any]:
    by_head = section.heads > 1 or any(_by_head(region, node) for node in section.stored)
    frame = Frame(
        row="row",
        head="head" if by_head else "",
        column="col",
        tile=Mask("mine"),
        vector=Mask("inside", "RAGGED"),
        number=Mask("live"),
    )
    program = TileProgram(region, frame, taken, words=words)
    for node in section.stored:
        if isinstance(node.op, CacheWrite):
            _insert(program, node)
        elif isinstance(node.op, LatentWrite):
            _insert_latent(program, node)
        else:
            _store(program, node)
    return {
        "heads": section.heads,
        "width": section.width,
        "by_head": by_head,
        "parts": section.parts,
        "names": [n.name for n in section.stored],
        "lines": program.lines,
    }


def _by_head(region: Region, node: Node) -> bool:
    """Whether rows are heads, be it one a token."""
    name = node.inputs[1] if node.op.has(Trait.STATE_WRITE) else node.inputs[0]
    return len(region.value(name).type.shape) == 3


def _store(program: TileProgram, node: Node) -> None:
    """A value that leaves the kernel."""
    out = node.outputs[0]
    type_ = program.region.value(out).type
    value, frame = program.value(out), program.frame
    head = f" + head * {type_.row_width}" if frame.head else ""
    if type_.row_width == 1 and node.op.has(Trait.ROW_REDUCE):
        row = f"row * {type_.static_elements} + head" if frame.head else "row"
        program.lines.append(frame.number.store(f"{triton_name(out)} + {row}", value))
        return
    pointer = f"{triton_name(out)} + row * {type_.static_elements}{head} + col"
    program.lines.append(frame.tile.store(pointer, stored(value, type_.dtype)))


def _insert(program: TileProgram, node: Node) -> None:
    """Keys and values to their page: `[kv_heads][16 tokens][head_dim]`, keys before values."""
    region = program.region
    state, keys, values, rows, *scales = node.inputs
    type_, dtype = region.value(keys).type, region.value(state).type.dtype
    heads, width = type_.shape[1], type_.row_width
    k, v = program.value(keys), program.value(values)
    cache = triton_name(region.base(state))
    key, value = stored(k, dtype) if not scales else "", stored(v, dtype) if not scales else ""
    if scales:
        at = triton_name(region.base(scales[0]))
        key, value = (
            f"to_float8(tl.div_rn({x}, tl.load({at} + {i})))" for i, x in enumerate((k, v))
        )
    assert isinstance(heads, int)
    program.lines += [
        f"request = tl.load({triton_name(rows)} + row, mask=live, other=-1)",
        f"position = tl.load({POSITIONS} + row, mask=live, other=0)",
        f"at = {cache}_table + request * MAX_PAGES + position // {PAGE_TOKENS}",
        "page = tl.load(at, mask=request >= 0, other=0)",
        f"start = (page.to(tl.int64) * PAGE_BYTES + {cache}_offset) // {dtype.bytes}",
        f"line = head * {PAGE_TOKENS} + position % {PAGE_TOKENS}",
        f"cell = {cache} + start + line * {width} + col",
        "kept = mine & (page > 0)",
        f"tl.store(cell, {key}, mask=kept)",
        f"tl.store(cell + {heads * PAGE_TOKENS * width}, {value}, mask=kept)",
    ]


def _insert_latent(program: TileProgram, node: Node) -> None:
    """A row to its page, `[16 tokens][width]`: the latent, then what is beside it."""
    region = program.region
    state, latent, beside, rows = node.inputs
    dtype = region.value(state).type.dtype
    rank, more = (region.value(name).type.row_width for name in (latent, beside))
    near = f"tl.arange(0, {next_power_of_two(more)})[None, :]"
    tile = Mask("(live & (near < NEAR))")
    frame = replace(program.frame, column="near", tile=tile)
    program.lines += [f"NEAR: tl.constexpr = {more}", f"near = {near}"]
    value, other = program.value(latent), program.value(beside, frame)
    cache = triton_name(region.base(state))
    program.lines += [
        f"request = tl.load({triton_name(rows)} + row, mask=live, other=-1)",
        f"position = tl.load({POSITIONS} + row, mask=live, other=0)",
        f"at = {cache}_table + request * MAX_PAGES + position // {PAGE_TOKENS}",
        "page = tl.load(at, mask=request >= 0, other=0)",
        f"start = (page.to(tl.int64) * PAGE_BYTES + {cache}_offset) // {dtype.bytes}",
        f"cell = {cache} + start + position % {PAGE_TOKENS} * {rank + more}",
        f"tl.store(cell + col, {stored(value, dtype)}, mask=mine & (page > 0))",
        f"tl.store(cell + {rank} + near, {stored(other, dtype)}, mask={tile.text} & (page > 0))",
    ]


POSITIONS = triton_name("positions")
