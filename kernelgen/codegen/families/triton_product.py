"""Owns what the product families share: the problem as numbers, and its traffic."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.codegen.families.row_prep import RowPrep, row_prep
from kernelgen.codegen.families.triton_block import Footprint, ceil_div
from kernelgen.codegen.families.triton_choice import masked
from kernelgen.codegen.families.triton_time import NEAR_LATENCY_US, REDUCE_US
from kernelgen.core.dtypes import BFLOAT16, DType
from kernelgen.formats import WeightFormat
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Node
from kernelgen.ir.types import Sizes
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.network import Region

STATISTIC_US = NEAR_LATENCY_US + REDUCE_US
"""one more pass over the row before the loop: 0.4 to 0.7 µs measured"""
_NEAR_BYTES = 64 << 10  # of a multiprocessor's 256 KiB: rows up to this size stay in its L1 cache


@dataclass(frozen=True)
class Product:
    """Rows times one or more matrices, as numbers."""

    rows: int
    k: int
    groups: tuple[tuple[int, int], ...]
    """(columns, matrices that meet there: 1 or 2) of each group"""
    row_bits: int
    """of an element as it is multiplied"""
    read_bits: int
    """of an element as it is read, before its preparation"""
    weight_bits: int
    math: str
    """dtype of the products"""
    prep: RowPrep | None
    finish_ops: int
    """float32 instructions for each output"""
    bytes: int
    flops: int

    @property
    def lead_us(self) -> float:
        """What the statistic costs every block before its loop."""
        return STATISTIC_US if self.prep and self.prep.passes > 1 else 0.0

    @property
    def weight_rows(self) -> int:
        """Rows of all matrices together."""
        return sum(columns * matrices for columns, matrices in self.groups)

    @property
    def most_matrices(self) -> int:
        """Matrices that one tile multiplies with."""
        return max(matrices for _, matrices in self.groups)

    @property
    def row_bytes(self) -> int:
        """All rows."""
        return self.rows * self.k * self.read_bits // 8

    def tiles(self, outputs: int) -> int:
        """Tiles of so many columns that cover all groups; the last of each group may be masked."""
        return sum(ceil_div(columns, outputs) for columns, _ in self.groups)

    def masks(self, rows: int, outputs: int, depth: int) -> tuple[str, ...]:
        """Notes on the sizes that a tile of so many rows, columns and steps does not divide."""
        columns = [masked("outputs", columns, outputs) for columns, _ in self.groups]
        return (
            *masked("rows", self.rows, rows),
            *masked("depth", self.k, depth),
            *(note for notes in columns for note in notes),
        )

    def row_traffic(self, blocks: int, rows: int, footprint: Footprint, device: Device) -> int:
        """Bytes of rows that pass the L2 cache, where each block reads `rows` rows, `prep.passes`
        times.
        """
        passes = self.prep.passes if self.prep else 1
        size = rows * self.k * self.read_bits // 8
        if size <= _NEAR_BYTES and footprint.shared_bytes <= 16 << 10:
            return min(blocks, device.units) * size
        return blocks * passes * size

    def prep_ops(self, blocks: int, rows: int, through: int = 0) -> float:
        """Instructions that prepare rows: every block does it for itself, `through` more for each
        element.
        """
        return blocks * rows * self.k * (self.prep.ops + through) if self.prep else 0.0


def product(region: Region, roles: LinearRoles, sizes: Sizes) -> Product:
    """The numbers of a matched region."""
    x = region.value(roles.x).type
    weight = region.value(roles.groups[0].weights[0]).type
    return Product(
        rows=x.elements(sizes) // x.row_width,
        k=roles.k,
        groups=tuple((_columns(region, g.anchors[0]), len(g.anchors)) for g in roles.groups),
        row_bits=x.dtype.bits,
        read_bits=_read_bits(region, roles),
        weight_bits=weight.dtype.bits,
        math="bfloat16" if x.dtype == BFLOAT16 and _narrow(weight.dtype) else "float32",
        prep=row_prep(region, roles),
        finish_ops=2 + sum(_flops(n) for g in roles.groups for n in g.epilogue),
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
    )


def _narrow(dtype: DType) -> bool:
    """Whether tensor cores multiply it as bfloat16, as it is stored or once decoded."""
    return dtype == BFLOAT16 or isinstance(dtype, WeightFormat)


def _read_bits(region: Region, roles: LinearRoles) -> int:
    """Width of the rows that come from outside: the stream's own, where a norm rounds it."""
    names = {region.base(name) for node in roles.prologue for name in node.inputs}
    types = [region.value(n).type for n in names if n not in region.made]
    rows = [t.dtype.bits for t in types if t.leading is not None and t.row_width == roles.k]
    return max(rows, default=region.value(roles.x).type.dtype.bits)


def _columns(region: Region, anchor: Node) -> int:
    return region.value(anchor.outputs[0]).type.row_width


def _flops(node: Node) -> int:
    return int(getattr(getattr(node.op, "expr", None), "flops", 1))
