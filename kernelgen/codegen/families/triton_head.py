"""Owns the fused head: tiles of the product keep their best candidate, a small kernel chooses."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from kernelgen.codegen.families.roles import HeadRoles, head_roles
from kernelgen.codegen.families.triton_block import Footprint
from kernelgen.codegen.families.triton_choice import Best, Tile
from kernelgen.codegen.families.triton_family import Quote
from kernelgen.codegen.families.triton_gemm import GemmTile, gemm
from kernelgen.codegen.families.triton_gemv import GemvTile, gemv
from kernelgen.codegen.families.triton_linear import prep_notes
from kernelgen.codegen.families.triton_product import Product, product
from kernelgen.codegen.families.triton_sample import CANDIDATE_BYTES, NOISE_OPS, choose_pass
from kernelgen.codegen.families.triton_skinny import SkinnyTile, skinny
from kernelgen.codegen.families.triton_time import Timing
from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

CORES = (("gemv", gemv), ("skinny", skinny), ("gemm", gemm))
"""product families by the number that `core` has in a choice"""


@dataclass(frozen=True)
class HeadTile:
    """A tile of one of the product families."""

    core: int
    inner: GemvTile | SkinnyTile | GemmTile

    @property
    def outputs(self) -> int:
        """Columns of a block: one candidate each."""
        return self.inner.outputs

    def footprint(self, problem: Product) -> Footprint:
        """That of the product."""
        return self.inner.footprint(problem)

    def problems(self, problem: Product, device: Device) -> tuple[str, ...]:
        """Those of the product."""
        return self.inner.problems(problem, device)

    def time(self, problem: Product, device: Device) -> Timing:
        """That of the product with noise and comparison as its epilogue."""
        return self.inner.time(problem, device)

    def masks(self, problem: Product) -> tuple[str, ...]:
        """Those of the product: masked columns never become candidates."""
        return self.inner.masks(problem)


@dataclass(frozen=True)
class HeadBest(Best[Product]):
    """The best tile of the best core."""

    @property
    def choice(self) -> dict[str, int]:
        """The core's number, then its tile."""
        assert isinstance(self.tile, HeadTile)
        return {"core": self.tile.core, **asdict(self.tile.inner)}


def head_sample_roles(region: Region, phase: str) -> HeadRoles | Refusal | None:
    """Projection to the vocabulary and choice."""
    return head_roles(region)


def quote_head(region: Region, roles: HeadRoles, sizes: Sizes, device: Device) -> Quote | Refusal:
    """The fastest product with the choice's work on top, then the second kernel."""
    plain = product(region, roles.linear, sizes)
    problem = replace(plain, finish_ops=plain.finish_ops + NOISE_OPS)
    found: list[HeadBest] = []
    refused: list[str] = []
    for core, (name, choose) in enumerate(CORES):
        answer = choose(problem, device)
        if isinstance(answer, Refusal):
            refused.append(f"{name}: {answer.reason}")
            continue
        tile: Tile[Product] = answer.tile
        assert isinstance(tile, GemvTile | SkinnyTile | GemmTile)
        found.append(HeadBest(HeadTile(core, tile), answer.timing, answer.legal, answer.looked_at))
    if not found:
        return Refusal("; ".join(refused))
    best = min(found, key=lambda b: b.timing.us)
    assert isinstance(best.tile, HeadTile)
    columns = problem.groups[0][0]
    parts = problem.tiles(best.tile.outputs)
    logits = region.value(roles.sample.inputs[0]).type
    most = logits.elements(sizes.capacity) // logits.row_width
    return Quote(
        best=best,
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
        problem=problem,
        scratch_bytes=most * parts * CANDIDATE_BYTES,
        passes=(choose_pass(problem.rows, columns, parts, device),),
        notes=(f"{CORES[best.tile.core][0]} tiles", *prep_notes(problem)),
    )
