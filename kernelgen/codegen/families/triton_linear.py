"""Owns the product families side by side: few, some and many rows of the same regions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kernelgen.codegen.families.roles import LinearRoles, linear_roles
from kernelgen.codegen.families.triton_choice import Best, given
from kernelgen.codegen.families.triton_clustered import ClusteredTile
from kernelgen.codegen.families.triton_family import LEAST_BYTES, Quote, Quoter
from kernelgen.codegen.families.triton_gemm import GemmTile
from kernelgen.codegen.families.triton_gemv import GemvTile
from kernelgen.codegen.families.triton_packed import PackedGemvTile, PackedTile, packed_format
from kernelgen.codegen.families.triton_product import Product, product
from kernelgen.codegen.families.triton_ring import RingTile
from kernelgen.codegen.families.triton_skinny import SkinnyTile
from kernelgen.codegen.families.triton_sliced import SlicedTile
from kernelgen.codegen.families.triton_sliced_packed import SlicedPackedTile
from kernelgen.formats.codes import E4M3
from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

ProductTile = (
    GemvTile
    | SlicedTile
    | ClusteredTile
    | RingTile
    | SkinnyTile
    | GemmTile
    | PackedTile
    | PackedGemvTile
    | SlicedPackedTile
)
Chooser = Callable[[Product, Device], Best[Product] | Refusal]


def product_roles(region: Region, phase: str) -> LinearRoles | Refusal | None:
    """Products of one row with what prepares and finishes them; their matrices are plain."""
    roles = region.recall("linear", lambda: linear_roles(region))
    if isinstance(roles, LinearRoles) and packed_format(region, roles) is not None:
        return Refusal("its matrices are packed")
    return roles


def gemv_roles(region: Region, phase: str) -> LinearRoles | Refusal | None:
    """The same, for a kernel that can also store the one row that it prepares."""
    roles = region.recall(("linear", "keeps"), lambda: linear_roles(region, keeps=True))
    if isinstance(roles, LinearRoles) and packed_format(region, roles) is not None:
        return Refusal("its matrices are packed")
    return roles


def quote_product(kind: type[ProductTile], choose: Chooser) -> Quoter:
    """The quote of the family whose tiles are of a kind that `choose` knows."""

    def quote(
        region: Region,
        roles: LinearRoles,
        sizes: Sizes,
        device: Device,
        choice: Mapping[str, int] | None = None,
    ) -> Quote | Refusal:
        problem = region.recall(("product", sizes), lambda: product(region, roles, sizes))
        found = _lacks_float8(kind, region, roles, device) or choose(problem, device)
        if choice is not None and not isinstance(found, Refusal):
            found = given(kind, choice, problem, device)
        if isinstance(found, Refusal):
            return found
        scratch = counters = 0
        tile = found.tile
        if isinstance(tile, SkinnyTile):
            scratch = max(LEAST_BYTES, tile.partial_bytes(problem))
            counters = problem.tiles(tile.outputs)
        return Quote(
            best=found,
            bytes=problem.bytes,
            flops=problem.flops,
            problem=problem,
            scratch_bytes=scratch,
            counters=counters,
            notes=prep_notes(problem),
        )

    return quote


def _lacks_float8(
    kind: type[ProductTile], region: Region, roles: LinearRoles, device: Device
) -> Refusal | None:
    """The vector kernel widens 8-bit floats in hardware, which starts with sm_89."""
    packed = packed_format(region, roles)
    if kind is PackedGemvTile and packed is not None and packed.code is E4M3 and device.sm < 89:
        return Refusal(f"{device.sm_name} does not widen 8-bit floats")
    return None


def prep_notes(problem: Product) -> tuple[str, ...]:
    """How the rows are prepared, in words."""
    prep = problem.prep
    if prep is None:
        return ()
    if prep.deferred:
        return ("the row statistic is summed on the way and scales the finished sums",)
    again = f"{prep.passes} passes over the row in every block" if prep.passes > 1 else "on the way"
    return (f"rows are prepared by {again}",)
