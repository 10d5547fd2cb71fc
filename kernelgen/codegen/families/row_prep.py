"""Owns what a product does to its rows first: passes over them, and norms that can wait."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.ir.expr import FUNCTIONS, Expr
from kernelgen.ir.graph import Node
from kernelgen.ir.op import Trait
from kernelgen.ops import Pointwise
from kernelgen.planner.network import Region


@dataclass(frozen=True)
class RowPrep:
    """The prologue of a product as a cost."""

    ops: int
    """float32 instructions for each element, all passes together"""
    passes: int
    """times that a block reads the row: 1, or 2 when a statistic has to be known first"""
    statistics: int
    """row reductions"""
    deferred: bool
    """whether the statistic only scales the row: `(x·w)·Wᵀ` is scaled when it is done, exact but
    for one rounding"""

    @property
    def summed(self) -> int:
        """Statistics that blocks gather on the way, each over the part of the row that it reads."""
        return self.statistics if self.deferred else 0


def row_prep(region: Region, roles: LinearRoles) -> RowPrep | None:
    """How the rows are prepared; None when they are read as they are (a choice of rows is only an
    address).
    """
    work = [n for n in roles.prologue if not n.op.has(Trait.SELECT)]
    if not work:
        return None
    statistics = [n for n in work if n.op.has(Trait.ROW_REDUCE)]
    deferred = bool(statistics) and _scales_only(region, roles, work, statistics)
    numbers = frozenset(n.outputs[0] for n in statistics)
    ops = sum(_element_ops(region, n, numbers) for n in work) - deferred
    passes = 2 if statistics and not deferred else 1
    return RowPrep(ops, passes, len(statistics), deferred)


def _element_ops(region: Region, node: Node, numbers: frozenset[str]) -> int:
    """Instructions that every element needs; what depends on row numbers alone is computed once a
    row.
    """
    expr = getattr(node.op, "expr", None)
    if not isinstance(expr, Expr):
        return 1
    scalars = frozenset(i for i, name in enumerate(node.inputs) if region.base(name) in numbers)
    return _ops(expr, scalars)  # the sum of a statistic is part of its last multiply-add


def _ops(expr: Expr, scalars: frozenset[int]) -> int:
    if _used(expr) <= scalars:
        return 0
    own = FUNCTIONS[expr.fn].flops if expr.fn in FUNCTIONS else 0
    return own + sum(_ops(a, scalars) for a in expr.args)


def _scales_only(
    region: Region, roles: LinearRoles, work: list[Node], statistics: list[Node]
) -> bool:
    """Whether the prologue is `f(statistics) · g(row)`, all statistics being of the row as it
    comes.
    """
    made = {n.outputs[0] for n in work}
    last = work[-1]
    if last.outputs[0] != roles.x or len(work) != len(statistics) + 1:
        return False
    if any(region.base(name) in made for n in statistics for name in n.inputs):
        return False
    assert isinstance(last.op, Pointwise)
    scalars = frozenset(i for i, name in enumerate(last.inputs) if region.base(name) in made)
    return all(used <= scalars or not used & scalars for used in map(_used, _factors(last.op.expr)))


def _factors(expr: Expr) -> list[Expr]:
    """Factors of a product; a quotient counts its divisor as one."""
    if expr.fn in ("mul", "div"):
        return [f for a in expr.args for f in _factors(a)]
    return _factors(expr.args[0]) if expr.fn == "neg" else [expr]


def _used(expr: Expr) -> frozenset[int]:
    """Numbers of the inputs that an expression reads."""
    if expr.fn == "arg":
        return frozenset({expr.index})
    return frozenset().union(*(_used(a) for a in expr.args))
