"""Owns the list of bound weights: every parameter in the layout that the plans ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from kernelgen.codegen.cut_axes import Cut
from kernelgen.codegen.cuts import weight_cuts
from kernelgen.codegen.families.cpp import PANEL
from kernelgen.core.errors import KernelgenError
from kernelgen.formats import WeightFormat
from kernelgen.formats.device import panel_bytes, row_sections
from kernelgen.ir.graph import Graph, Table
from kernelgen.ir.parameters import parameters
from kernelgen.planner.plan import Plan


@dataclass(frozen=True)
class BoundWeight:
    """One buffer that the loader fills. `matrix` is the checkpoint's shape, `shape` that after
    the layout."""

    name: str
    dtype: str
    matrix: tuple[int, ...]
    shape: tuple[int, ...]
    layout: str
    table: Table | None = None
    format: WeightFormat | None = None
    """of a packed matrix: its buffer is bytes"""
    cut: Cut | None = None
    """how ranks share it; None: each has all of it"""

    @property
    def elements(self) -> int:
        """Elements of the buffer, padding included."""
        return prod(self.shape)


def demanded_layouts(plans: Iterable[Plan]) -> dict[str, str]:
    """Weight (as named in its block) → layout. Two kernels that demand different ones are our own
    mistake.

    Asked of launches: a kernel that several weights share names only the first of them.
    """
    found: dict[str, str] = {}
    wirings = {
        (launch.kernel.name, launch.wiring): launch for plan in plans for launch in plan.launches
    }
    for launch in wirings.values():
        demands = launch.kernel.match.layouts
        for value, operand in zip(launch.kernel.signature, launch.wiring, strict=True):
            layout = demands.get(value)
            if layout and found.setdefault(operand.name, layout) != layout:
                raise KernelgenError(
                    f"{operand.name} is wanted both as {found[operand.name]} and as {layout}"
                )
    return found


def bound_weights(graph: Graph, layouts: dict[str, str]) -> tuple[BoundWeight, ...]:
    """All parameters in order of first use, then the tables."""
    found, cuts = [], weight_cuts(graph)
    for parameter in parameters(graph):
        matrix = tuple(d for d in parameter.type.shape if isinstance(d, int))
        local = parameter.template.removeprefix("layers.{layer}.")
        layout, dtype = layouts.get(local, "rows"), parameter.type.dtype
        name, cut = parameter.name, cuts.get(parameter.name)
        if isinstance(dtype, WeightFormat):
            shape = packed_shape(dtype, matrix, layout)
            found.append(BoundWeight(name, "uint8", matrix, shape, layout, None, dtype, cut))
            continue
        shape = panel_shape(matrix, dtype.name) if layout == "panel" else matrix
        found.append(BoundWeight(name, dtype.name, matrix, shape, layout, cut=cut))
    for table in graph.tables:
        shape = tuple(d for d in table.type.shape if isinstance(d, int))
        found.append(BoundWeight(table.name, table.type.dtype.name, shape, shape, "rows", table))
    return tuple(found)


def panel_shape(matrix: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """`[N, K]` in panels of 32 outputs: `[N/32, K/2, 32, 2]` for bfloat16, `[N/32, K, 32]` for
    float32, K made even. A stack `[E, N, K]`: the panels of each matrix, one after the other."""
    n, k = matrix[-2:]
    panels, pairs = prod(matrix[:-2]) * -(-n // PANEL), -(-k // 2)
    return (panels, pairs, PANEL, 2) if dtype == "bfloat16" else (panels, 2 * pairs, PANEL)


def packed_shape(kind: WeightFormat, matrix: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Bytes of a packed matrix: `[panels, bytes of one]`, or all of them. A stack `[E, N, K]`: each
    matrix by itself, one after the other."""
    n, k = matrix[-2:]
    matrices = prod(matrix[:-2])
    if layout == "panel":
        return (matrices * -(-n // PANEL), panel_bytes(kind, k))
    return (matrices * row_sections(kind, n, k).bytes,)
