"""Owns the text of row kernels: ops that each row decides for itself, side by side where they share no row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.triton.expressions import stored, triton_name
from kernelgen.codegen.triton.frame import Frame, Mask
from kernelgen.codegen.triton.product import COUNT_WORDS, step_words
from kernelgen.codegen.triton.tile_program import TileProgram
from kernelgen.ir.graph import Node
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Dim, Type
from kernelgen.ops import CacheWrite
from kernelgen.planner.caches import PAGE_TOKENS, CacheSchema
from kernelgen.planner.network import Region


@dataclass(frozen=True)
class Shape:
    """What one row of a section is: a token's or logit's row, or one of its heads."""

    leading: Dim
    heads: int
    width: int
    parts: bool
    """whether blocks may take parts of a row: nothing needs all of it"""

    def blocks(self, tokens: int, rows: int, width: int) -> int:
        """Blocks of `rows` rows, and of `width` columns where parts are allowed."""
        parts = -(-self.width // width) if self.parts else 1
        return -(-tokens * self.heads // rows) * parts


def row_sections(region: Region) -> list[tuple[Shape, list[Node]]]:
    """Nodes by the rows they work on. Nodes that hand values to each other share a shape: the family sees to it."""
    found: dict[tuple[Any, ...], list[Node]] = {}
    for node in region.nodes:
        type_ = _worked_on(region, node)
        key = (type_.leading, type_.static_elements // type_.row_width, type_.row_width)
        found.setdefault(key, []).append(node)
    return [
        (Shape(*key, parts=not any(n.op.has(Trait.ROW_REDUCE) for n in nodes)), nodes)
        for key, nodes in found.items()
    ]


def _worked_on(region: Region, node: Node) -> Type:
    """The type whose rows a node walks."""
    if node.op.has(Trait.STATE_WRITE):
        return region.value(node.inputs[1]).type
    name = node.inputs[0] if node.op.has(Trait.ROW_REDUCE) else node.outputs[0]
    return region.value(name).type


def rows_context(region: Region, cache: CacheSchema, args: ArgsLayout) -> dict[str, Any]:
    """What `triton/rows.py.j2` needs."""
    sections, taken = row_sections(region), set[str]()
    words = step_words(args)
    made = [_section(region, shape, nodes, taken, words) for shape, nodes in sections]
    for number, section in enumerate(made):
        section["number"] = number
    return {
        "sections": made,
        "count_word": COUNT_WORDS[sections[0][0].leading],
        "paged": bool(region.with_trait(Trait.STATE_WRITE)),
        "page_bytes": cache.page_bytes,
        "max_pages": args.max_pages,
    }


def _section(
    region: Region, shape: Shape, nodes: list[Node], taken: set[str], words: dict[str, int]
) -> dict[str, Any]:
    three = any(len(_worked_on(region, n).shape) == 3 for n in nodes)
    frame = Frame(
        row="row",
        head="head" if three else "",
        column="col",
        tile=Mask("mine"),
        vector=Mask("inside", "RAGGED"),
        number=Mask("live"),
    )
    program = TileProgram(region, frame, taken, words=words)
    for node in nodes:
        if isinstance(node.op, CacheWrite):
            _insert(program, node)
        elif node.outputs[0] in region.outputs:
            _store(program, node)
    return {
        "heads": shape.heads,
        "width": shape.width,
        "three": three,
        "parts": shape.parts,
        "names": [n.name for n in nodes],
        "lines": program.lines,
    }


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
    """Keys and values of a token to its page: `[kv_heads][16 tokens][head_dim]`, keys before values."""
    region = program.region
    state, keys, values, rows = node.inputs
    type_, dtype = region.value(keys).type, region.value(state).type.dtype
    heads, width = type_.shape[1], type_.row_width
    k, v = program.value(keys), program.value(values)
    cache = triton_name(region.base(state))
    assert isinstance(heads, int)
    program.lines += [
        f"request = tl.load({triton_name(rows)} + row, mask=live, other=-1)",
        f"position = tl.load({POSITIONS} + row, mask=live, other=0)",
        f"at = {cache}_table + request * MAX_PAGES + position // {PAGE_TOKENS}",
        "page = tl.load(at, mask=request >= 0, other=0)",
        f"start = (page.to(tl.int64) * PAGE_BYTES + {cache}_offset) // {dtype.bytes}",
        f"cell = {cache} + start + (head * {PAGE_TOKENS} + position % {PAGE_TOKENS}) * {width} + col",
        "kept = mine & (page > 0)",
        f"tl.store(cell, {stored(k, dtype)}, mask=kept)",
        f"tl.store(cell + {heads * PAGE_TOKENS * width}, {stored(v, dtype)}, mask=kept)",
    ]


POSITIONS = triton_name("positions")
