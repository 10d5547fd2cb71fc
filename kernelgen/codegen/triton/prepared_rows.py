"""Owns how a product prepares its rows: chosen rows, statistics before or on the way, the tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.codegen.families.row_prep import row_prep
from kernelgen.codegen.triton.expressions import rounded, stored, triton_expr, triton_name
from kernelgen.codegen.triton.factors import split_factors
from kernelgen.codegen.triton.frame import Frame
from kernelgen.codegen.triton.tile_program import (
    TileProgram,
    finished,
    levels,
    neutral,
    reduce_call,
)
from kernelgen.ir.graph import Node
from kernelgen.ops import Pointwise, RowReduce, SelectRows
from kernelgen.planner.network import Region


@dataclass
class PreparedRows:
    """Prints the prologue of a product on tiles `[rows, DEPTH]`.

    `exact`: whether the tile stays float32 (vector units, or float32 products) or becomes bfloat16
    for the tensor cores.
    """

    region: Region
    roles: LinearRoles
    frame: Frame
    exact: bool
    words: Mapping[str, int]
    taken: set[str] = field(default_factory=set)
    known: dict[str, str] = field(default_factory=dict)
    """statistics that earlier loops have finished, and their variables"""
    chosen: TileProgram = field(init=False)

    def __post_init__(self) -> None:
        self.chosen = TileProgram(self.region, self.frame, self.taken, words=self.words)

    def context(self) -> dict[str, Any]:
        """What the templates print.

        `chosen`: statements before any loop; `levels`: loops before the main one; `lines`, `text`:
        the tile in the main loop; `statistics`: what the main loop gathers; `scale`: what the
        finished sums are multiplied with.
        """
        for node in self.roles.prologue:
            if isinstance(node.op, SelectRows):
                self.chosen.selected(node.outputs[0])
        work = [n for n in self.roles.prologue if not isinstance(n.op, SelectRows)]
        prep = row_prep(self.region, self.roles)
        found: dict[str, Any] = {"chosen": self.chosen.lines, "statistics": [], "scale": ""}
        if prep is not None and prep.deferred:
            return found | {"levels": []} | self._deferred(work)
        found["levels"] = [self._level(nodes) for nodes in levels(self.region, work)]
        return found | self._tile(work)

    def _program(self) -> TileProgram:
        """A program for one loop: it knows the chosen rows and the statistics so far."""
        program = TileProgram(self.region, self.frame, self.taken, rows=self.chosen.rows)
        for name, variable in self.known.items():
            program.bind(name, variable)
        return program

    def _level(self, nodes: list[Node]) -> dict[str, Any]:
        """One loop over the whole row, for statistics that do not wait for one another."""
        program = self._program()
        sums = [_statistic(program, node) for node in nodes]
        for node, made in zip(nodes, sums, strict=True):
            self.known[node.outputs[0]] = made["value"]
        return {"lines": program.lines, "statistics": sums}

    def _tile(self, work: list[Node]) -> dict[str, Any]:
        """The tile once all statistics are known."""
        program, dtype = self._program(), self.region.value(self.roles.x).type.dtype
        if not work:
            text = self.frame.tile.load(program.pointer(self.roles.x))
            return {
                "lines": program.lines,
                "text": f"({text}).to(tl.float32)" if self.exact else text,
            }
        op = work[-1].op
        assert isinstance(op, Pointwise)
        text = triton_expr(op.expr, [program.value(n) for n in work[-1].inputs])
        text = rounded(text, dtype) if self.exact else stored(f"({text})", dtype)
        return {"lines": program.lines, "text": text}

    def _deferred(self, work: list[Node]) -> dict[str, Any]:
        """The tile without its scale, and the statistic gathered from the same loads.

        On vector units the unscaled tile stays float32: rounding it would only lose.
        """
        program, last = self._program(), work[-1]
        assert isinstance(last.op, Pointwise)
        reduces = {n.outputs[0]: n for n in work[:-1]}
        scalars = frozenset(i for i, n in enumerate(last.inputs) if self.region.base(n) in reduces)
        scale, rest = split_factors(last.op.expr, scalars)
        inputs = ["" if i in scalars else program.value(n) for i, n in enumerate(last.inputs)]
        text = triton_expr(rest, inputs) if rest is not None else "1.0"
        dtype = self.region.value(self.roles.x).type.dtype
        statistics = [_statistic(program, node) for node in reduces.values()]
        made = {name: s["value"] for name, s in zip(reduces, statistics, strict=True)}
        assert scale is not None
        return {
            "lines": program.lines,
            "text": text if self.exact else stored(f"({text})", dtype),
            "statistics": statistics,
            "scale": triton_expr(scale, [made.get(self.region.base(n), "") for n in last.inputs]),
        }


def _statistic(program: TileProgram, node: Node) -> dict[str, str]:
    """A row reduction that is gathered tile by tile: its texts from start to end."""
    assert isinstance(node.op, RowReduce)
    element, start = program.element(node), neutral(node)
    kept = f"(tl.where(real[None, :], {element}, {start}) if RAGGED else {element})"
    name = program.fresh(f"{triton_name(node.outputs[0])}_gathered")
    largest = node.op.how == "max"
    return {
        "name": name,
        "start": start,
        "gather": f"{name} = tl.maximum({name}, {kept})" if largest else f"{name} += {kept}",
        "call": reduce_call(node),
        "join": "tl.maximum({}, {})" if largest else "{} + {}",
        "value": program.fresh(triton_name(node.outputs[0])),
        "finish": finished(node, program.region),
    }
