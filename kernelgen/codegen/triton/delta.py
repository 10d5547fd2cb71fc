"""Owns the Triton of delta-rule decode: printed queries, keys, values and ends of heads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel, Grid
from kernelgen.codegen.families.delta_roles import DeltaRoles
from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.families.triton_delta import DeltaTile
from kernelgen.codegen.triton.expressions import rounded, stored, triton_name, widened
from kernelgen.codegen.triton.frame import Frame, Mask, address
from kernelgen.codegen.triton.kernels import Choice, StepLayout
from kernelgen.codegen.triton.order import in_order, late
from kernelgen.codegen.triton.single import single_launch
from kernelgen.codegen.triton.states import (
    number_of_head,
    state_context,
    step_constants,
    whole_rows,
)
from kernelgen.codegen.triton.tile_program import TileProgram
from kernelgen.ir.graph import Node
from kernelgen.ir.types import Sizes
from kernelgen.ops import DeltaScan, ShortConv
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel

_STATE = 7


def delta_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """A scan of one token a request with its surroundings, one launch."""
    tile, region, roles = DeltaTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, DeltaRoles)
    context = delta_step_context(region, roles, layout, tile.width)

    def grid(sizes: Sizes) -> Grid:
        return (context["heads"] * ceil_div(context["values"], tile.width), sizes.tokens, 1)

    constants, shape = {"WIDTH": tile.width}, (tile.warps, 1)
    (one,) = single_launch(kernel, why, "delta_step", context, tile, constants, shape, grid).passes
    if not tile.blocks:
        return GpuKernel((one,))
    limit = (("maxnreg", tile.most_registers()),)
    unit = replace(one.unit, name=f"{one.unit.name}_b{tile.blocks}", options=limit)
    return GpuKernel((replace(one, unit=unit),))


def decay_context(op: DeltaScan) -> dict[str, Any]:
    """What `triton/decay.j2` needs."""
    return {
        "bounded": op.bound is not None,
        "bound_log2": repr((op.bound or 0.0) * math.log2(math.e)),
        "minus_log2e": repr(-math.log2(math.e)),
    }


def scan_context(region: Region, anchor: Node, layout: StepLayout) -> dict[str, Any]:
    """Sizes, constants and the operands that every kernel of a delta scan reads in one way."""
    op, inputs = anchor.op, anchor.inputs
    assert isinstance(op, DeltaScan)
    q, v = region.value(inputs[0]).type, region.value(inputs[2]).type
    return {
        "heads": q.static_elements // q.row_width,
        "keys": q.row_width,
        "keys_range": next_power_of_two(q.row_width),
        "values": v.row_width,
        "eps": repr(op.eps),
        "scale": repr(op.scale),
        **decay_context(op),
        "rate": triton_name(region.base(inputs[5])),
        "bias": triton_name(region.base(inputs[6])),
        "state": state_context(region, inputs[_STATE], layout),
        "words": step_constants(layout),
    }


def delta_step_context(
    region: Region, roles: DeltaRoles, layout: StepLayout, width: int
) -> dict[str, Any]:
    """What `triton/delta_step.py.j2` needs."""
    context = scan_context(region, roles.anchor, layout)
    inputs, out = roles.anchor.inputs, roles.anchor.outputs[0]
    ragged = context["keys"] != context["keys_range"]
    key = Mask("(i < KEYS)" if ragged else "")
    column = Mask("(c < VALUES)" if context["values"] % width else "")
    keys = Frame("t", "i", key, key, Mask(), "head")
    values = Frame("t", "c", column, column, Mask(), "head")
    program = StepProgram(region, values, layout=layout)
    for name, number, frame in (("q", 0, keys), ("k", 1, keys), ("f", 3, keys), ("v", 2, values)):
        context[name] = program.value(inputs[number], frame)
    beta = number_of_head(region, inputs[4], "t", "head")
    load = widened(f"tl.load({beta})", region.value(inputs[4]).type.dtype)
    context["beta"] = program.let(inputs[4], load)
    before = len(program.lines)
    program.bind(out, "made")
    kind = region.value(roles.output).type
    context["result"] = stored(program.value(roles.output), kind.dtype)
    outside = late(region)
    first = in_order(program.lines[:before], outside)
    waiting = {line.partition(" = ")[0] for line in (*first.loads, *first.work)}
    last = in_order(program.lines[before:], {*outside, *waiting, "made"})
    return context | {
        "early": [*first.early, *last.early],
        "loads": [*first.loads, *last.loads],
        "work": first.work,
        "after": last.work,
        "windows": program.windows,
        "stores": program.stores,
        "output": triton_name(roles.output),
        "column_mask": column.text,
        "key_mask": key.text,
        "row_mask": "(key < KEYS)" if ragged else "",
    }


@dataclass
class StepProgram(TileProgram):
    """Also prints convolutions of a step in which each request has one token.

    The template has `old`, `has_old` and `kept`: the pages of the request's states before and after
    the step, and whether there are such.
    """

    layout: StepLayout | None = None
    windows: list[dict[str, Any]] = field(default_factory=list)
    """states of convolutions"""
    stores: list[str] = field(default_factory=list)
    """statements that keep the windows, once everything old has been read"""

    def _made(self, node: Node, at: Frame) -> str:
        return self._conv(node, at) if isinstance(node.op, ShortConv) else super()._made(node, at)

    def _conv(self, node: Node, at: Frame) -> str:
        assert self.layout is not None
        x, weight, state, _rows = node.inputs
        taps, dtype = self.region.value(weight).type, self.region.value(x).type.dtype
        made = state_context(self.region, state, self.layout)
        self.windows.append(made)
        columns, back = taps.static_elements // taps.row_width, taps.row_width - 1
        pool = made["name"]
        inside = f" & {at.tile.text}" if at.tile.text else ""
        old, new = (address(f"{pool}_{which}", at.column) for which in ("old", "new"))
        rows = [
            self.let(
                f"{x}.old",
                f"tl.load({old} + {j * columns}, mask=has_old{inside}, other=0.0)",
            )
            for j in range(back)
        ]
        now = address(whole_rows(self.region, x), f"{at.row} * {columns}", at.column)
        rows.append(self.let(f"{x}.now", at.tile.load(now)))
        for j, row in enumerate(rows[1:]):
            self.stores.append(f"tl.store({new} + {j * columns}, {row}, mask=keeps{inside})")
        matrix = triton_name(self.region.base(weight))
        factors = [
            self.let(
                f"{weight}.tap", at.tile.load(f"{matrix} + {at.column} * {taps.row_width} + {j}")
            )
            for j in range(back + 1)
        ]
        terms = zip(factors, rows, strict=True)
        text = " + ".join(f"{factor} * {widened(row, dtype)}" for factor, row in terms)
        return rounded(text, self.region.value(node.outputs[0]).type.dtype)
