"""Owns the fused head: tiles of the product keep their best candidate, a small kernel chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from kernelgen.codegen.families.roles import HeadRoles, head_roles
from kernelgen.codegen.families.triton_block import Footprint
from kernelgen.codegen.families.triton_choice import Best, Tile
from kernelgen.codegen.families.triton_family import Quote
from kernelgen.codegen.families.triton_gemm import LEAST_ROWS, GemmTile, gemm
from kernelgen.codegen.families.triton_gemv import GemvTile, gemv
from kernelgen.codegen.families.triton_linear import prep_notes
from kernelgen.codegen.families.triton_product import Product, product
from kernelgen.codegen.families.triton_sample import SampleTile, choose_pass, choose_tile
from kernelgen.codegen.families.triton_skinny import SkinnyTile, skinny
from kernelgen.codegen.families.triton_time import Timing
from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

CORES = (("gemv", gemv), ("skinny", skinny), ("gemm", gemm))
"""product families by the number that `core` has in a choice"""
_KEEP_OPS = 4  # mask, comparison, place
HEAD_COUNTERS = 3
"""int32 words for each logit row: the best candidate so far (64 bits), and a ticket"""


@dataclass(frozen=True)
class HeadTile:
    """A tile of one of the product families, and how rows with top-k or top-p are scanned."""

    core: int
    inner: GemvTile | SkinnyTile | GemmTile
    choose: SampleTile

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
        """The core's number, its tile, and that of the second kernel as `choose_…`."""
        assert isinstance(self.tile, HeadTile)
        later = {f"choose_{name}": value for name, value in asdict(self.tile.choose).items()}
        return {"core": self.tile.core, **asdict(self.tile.inner), **later}


def head_sample_roles(region: Region, phase: str) -> HeadRoles | Refusal | None:
    """Projection to the vocabulary and choice."""
    return head_roles(region)


def head_tile(choice: Mapping[str, int]) -> HeadTile:
    """The tile that a choice spells."""
    later = {k.removeprefix("choose_"): v for k, v in choice.items() if k.startswith("choose_")}
    inner = {k: v for k, v in choice.items() if k != "core" and not k.startswith("choose_")}
    kind = (GemvTile, SkinnyTile, GemmTile)[choice["core"]]
    return HeadTile(choice["core"], kind(**inner), SampleTile(**later))


def quote_head(region: Region, roles: HeadRoles, sizes: Sizes, device: Device) -> Quote | Refusal:
    """The fastest product with the choice's work on top, then the second kernel.

    The product takes all logit rows that a step may ask for.
    """
    plain = product(region, roles.linear, sizes.capacity)
    problem = replace(plain, finish_ops=plain.finish_ops + _KEEP_OPS)
    logits = region.value(roles.sample.inputs[0]).type
    later = choose_tile(problem.rows, logits.row_width, device)
    found: list[HeadBest] = []
    refused: list[str] = []
    for core, (name, choose) in enumerate(CORES):
        # Bands of the many-row product that are not asked for cost nothing: it is chosen for the
        # rows of a usual step.
        usual = max(LEAST_ROWS, product(region, roles.linear, sizes).rows)
        asked = replace(problem, rows=min(usual, problem.rows)) if name == "gemm" else problem
        answer = choose(asked, device)
        if isinstance(answer, Refusal):
            refused.append(f"{name}: {answer.reason}")
            continue
        tile: Tile[Product] = answer.tile
        assert isinstance(tile, GemvTile | SkinnyTile | GemmTile)
        if isinstance(tile, SkinnyTile):
            tile = replace(tile, splits=1)  # partial sums are no candidates
        timing = tile.time(asked, device)
        found.append(HeadBest(HeadTile(core, tile, later), timing, answer.legal, answer.looked_at))
    if not found:
        return Refusal("; ".join(refused))
    best = min(found, key=lambda b: b.timing.us)
    assert isinstance(best.tile, HeadTile)
    return Quote(
        best=best,
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
        problem=problem,
        scratch_bytes=problem.rows * later.row_words(logits.row_width) * 4,
        counters=HEAD_COUNTERS * problem.rows,
        passes=(choose_pass(problem.rows, device),),
        notes=(f"{CORES[best.tile.core][0]} tiles", *prep_notes(problem)),
    )
