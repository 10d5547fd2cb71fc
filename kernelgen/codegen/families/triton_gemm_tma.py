"""Owns the product of many stored rows: blocks of both operands come by tensor descriptors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from kernelgen.codegen.families.roles import LinearRoles
from kernelgen.codegen.families.row_prep import row_prep
from kernelgen.codegen.families.triton_block import WARP
from kernelgen.codegen.families.triton_choice import Best, best
from kernelgen.codegen.families.triton_gemm import LEAST_ROWS, GemmTile
from kernelgen.codegen.families.triton_linear import product_roles
from kernelgen.codegen.families.triton_product import Product
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.hw.device import Device
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

# Measured on one H200 (2026-11-30; 128 × 256 × 64, 4 stages, 8 warps; µs at 16,384 / 8,192 / 2,048
# rows, cuBLAS in brackets): 6,144 × 4,096 1,082 / 610 / 159 (1,049 / 571 / 156); 4,096 × 4,096 with
# a residual 903 / 465 / 122 (846 / 407 / 105 without one); 2 × 12,288 × 4,096 with their activation
# 4,397 / 2,469 / 659 (4,818 / 2,386 / 608 without); 4,096 × 12,288 with a residual 2,415 / 1,243 /
# 319 (2,445 / 1,198 / 299 without). The first figures of a run come from a cool GPU: those of 8,192
# rows repeat. On other SMs with descriptors tiles are legal where they compile, times are modelled.
_BEST_SHARE = 0.92
"""of the rate at 8192³, in full waves of the largest tile and without what its finish takes"""
_CACHE_GAIN = 1.5
"""blocks of that tile draw 70 GB/s each through the L2 cache and do not wait for it: loads by
address reach 62"""
_MOST_SUMS = 128
"""float32 sums of a thread, where they and the operands are registers"""
_LINE_BYTES = 16
"""of which a row has to be a multiple"""
_MOST_WEIGHTS = 7
"""descriptors of one launch but that of the rows"""
_BANDS = 8
_DEPTH = 64
"""elements of the 128 bytes that one line of shared memory holds"""


@dataclass(frozen=True)
class TmaTile(GemmTile):
    """A block computes `outputs` columns of `rows` rows, `depth` of K at a time; the blocks of
    `bands` bands of rows run together and share columns in the L2 cache.
    """

    bands: int
    best_share: ClassVar[float] = _BEST_SHARE
    cache_gain: ClassVar[float] = _CACHE_GAIN

    def problems(self, problem: Product, device: Device) -> tuple[str, ...]:
        """Limits of the block. sm_90 and sm_100 multiply from shared memory."""
        found = list(self.footprint(problem).problems(device))
        sums = self.outputs * problem.most_matrices * self.rows / (self.warps * WARP)
        if sums >= _MOST_SUMS and not (device.has("wgmma") or device.has("tcgen05")):
            found.append(f"{sums:g} sums a thread leave too few registers for the operands")
        if self.depth != _DEPTH:
            found.append(f"steps of {self.depth} elements, a line of shared memory has {_DEPTH}")
        return tuple(found)


def tma_roles(region: Region, phase: str) -> LinearRoles | Refusal | None:
    """Products of rows that lie in memory as they are multiplied: a descriptor copies, it does not
    compute. A norm before them is a row kernel of its own, which costs one more pass over the rows
    and saves every block from preparing them again.
    """
    roles = product_roles(region, phase)
    if isinstance(roles, LinearRoles) and roles.prologue:
        first = roles.prologue[0].name
        return Refusal(f"{first} prepares rows, a descriptor copies them as they lie in memory")
    return _described(region, roles) if isinstance(roles, LinearRoles) else roles


def ring_roles(region: Region, phase: str) -> LinearRoles | Refusal | None:
    """Products of such rows, or of rows whose statistic can wait for the sums; all tiles have
    equally many matrices, so that they share one ring.
    """
    roles = product_roles(region, phase)
    if not isinstance(roles, LinearRoles):
        return roles
    if len({len(g.weights) for g in roles.groups}) > 1:
        return Refusal("its groups have different numbers of matrices")
    if roles.prologue:
        prep = row_prep(region, roles)
        if prep is None or not prep.deferred:
            return Refusal(f"{roles.prologue[0].name} has to be known before the first product")
    return _described(region, roles)


def _described(region: Region, roles: LinearRoles) -> LinearRoles | Refusal:
    """Refused where a descriptor cannot tell where the operands lie."""
    weights = [w for group in roles.groups for w in group.weights]
    rows = [] if roles.prologue else [region.base(roles.x)]
    names = {*rows, *weights}
    values = [region.value(name).type for name in (roles.x, *weights)]
    if any(value.dtype != BFLOAT16 for value in values):
        return Refusal("descriptors are for products of bfloat16")
    if roles.k * BFLOAT16.bytes % _LINE_BYTES:
        return Refusal(f"rows of {roles.k} elements are no multiple of {_LINE_BYTES} bytes")
    if len(weights) > _MOST_WEIGHTS:
        return Refusal(f"{len(weights)} matrices, a launch describes at most {_MOST_WEIGHTS}")
    again = [n.name for g in roles.groups for n in g.epilogue for i in n.inputs if i in names]
    if again:
        return Refusal(f"{again[0]} reads an operand of the product by address")
    return roles


def space() -> Iterator[TmaTile]:
    """All tiles, large ones first."""
    for rows in (128, 64, 256):
        for outputs in (256, 128, 64):
            for stages in (4, 3, 2):
                for warps in (8, 4):
                    yield TmaTile(rows, outputs, _DEPTH, stages, warps, _BANDS)


@lru_cache(maxsize=4096)
def gemm_tma(problem: Product, device: Device) -> Best[Product] | Refusal:
    """The best tile for a problem; refused for a few rows and without the copy unit."""
    if not device.has("tma"):
        return Refusal(f"{device.sm_name} has no unit that copies blocks by descriptor")
    if problem.rows < LEAST_ROWS:
        return Refusal(f"{problem.rows} rows, a tile of 64 or more would be mostly padding")
    return best(space(), problem, device)
