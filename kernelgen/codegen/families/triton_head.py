"""Owns the fused head: tiles of the product keep their best candidate, a small kernel chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from kernelgen.codegen.families.roles import HeadRoles, head_roles
from kernelgen.codegen.families.triton_block import Footprint, ceil_div
from kernelgen.codegen.families.triton_choice import Best, OtherFields, Tile, checked
from kernelgen.codegen.families.triton_family import Quote
from kernelgen.codegen.families.triton_gemm import LEAST_ROWS, GemmTile, gemm
from kernelgen.codegen.families.triton_gemv import GemvTile, gemv
from kernelgen.codegen.families.triton_linear import prep_notes
from kernelgen.codegen.families.triton_packed import packed_format
from kernelgen.codegen.families.triton_product import Product, product
from kernelgen.codegen.families.triton_sample import (
    COUNTERS_OF_ROW,
    GROUP,
    SampleProblem,
    SampleTile,
    choose_pass,
    choose_tile,
)
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


@dataclass(frozen=True)
class HeadTile:
    """A tile of one of the product families, and how rows with top-k or top-p are scanned."""

    core: int
    inner: GemvTile | SkinnyTile | GemmTile
    choose: SampleTile

    @property
    def gathered(self) -> bool:
        """Whether maxima of groups come from several blocks: in counters, of the one row."""
        return CORES[self.core][0] == "gemv"

    @property
    def group(self) -> int:
        """Neighbouring logits that share one entry of the list of maxima: those of a block."""
        return GROUP if self.gathered else self.inner.outputs

    def counters(self, rows: int, vocabulary: int) -> int:
        """int32 words: those of the choice, and maxima that blocks share."""
        shared = ceil_div(vocabulary, GROUP) if self.gathered else 0
        return rows * COUNTERS_OF_ROW + shared

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
    roles = head_roles(region)
    if isinstance(roles, HeadRoles) and packed_format(region, roles.linear) is not None:
        return Refusal("its matrix is packed")
    return roles


def head_tile(choice: Mapping[str, int]) -> HeadTile:
    """The tile that a choice spells."""
    later = {k.removeprefix("choose_"): v for k, v in choice.items() if k.startswith("choose_")}
    inner = {k: v for k, v in choice.items() if k != "core" and not k.startswith("choose_")}
    kind = (GemvTile, SkinnyTile, GemmTile)[choice["core"]]
    return HeadTile(choice["core"], kind(**inner), SampleTile(**later))


def quote_head(
    region: Region,
    roles: HeadRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """The fastest product with the choice's work on top, then the second kernel.

    The product takes all logit rows that a step may ask for.
    """
    problem = head_problem(region, roles, sizes.capacity)
    usual = max(LEAST_ROWS, product(region, roles.linear, sizes).rows)
    vocabulary = region.value(roles.sample.inputs[0]).type.row_width
    if choice is None:
        best = _best(problem, usual, choose_tile(problem.rows, vocabulary, device), device)
    else:
        best = _given(problem, usual, vocabulary, choice, device)
    if isinstance(best, Refusal):
        return best
    assert isinstance(best.tile, HeadTile)
    return Quote(
        best=best,
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
        problem=problem,
        scratch_bytes=problem.rows * best.tile.choose.row_words(vocabulary, best.tile.group) * 4,
        counters=best.tile.counters(problem.rows, vocabulary),
        passes=(choose_pass(problem.rows, device),),
        notes=(f"{CORES[best.tile.core][0]} tiles", *prep_notes(problem)),
    )


def head_problem(region: Region, roles: HeadRoles, sizes: Sizes) -> Product:
    """The numbers of the product, its epilogue included."""
    plain = product(region, roles.linear, sizes)
    return replace(plain, finish_ops=plain.finish_ops + _KEEP_OPS)


def _asked(core: int, problem: Product, usual: int) -> Product:
    """What a core's tile is chosen for: bands of the many-row product that are not asked for cost
    nothing, so it counts the rows of a usual step.
    """
    return replace(problem, rows=min(usual, problem.rows)) if CORES[core][0] == "gemm" else problem


def _best(problem: Product, usual: int, later: SampleTile, device: Device) -> HeadBest | Refusal:
    found: list[HeadBest] = []
    refused: list[str] = []
    for core, (name, choose) in enumerate(CORES):
        asked = _asked(core, problem, usual)
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
    return min(found, key=lambda b: b.timing.us) if found else Refusal("; ".join(refused))


def _given(
    problem: Product, usual: int, vocabulary: int, choice: Mapping[str, int], device: Device
) -> HeadBest | Refusal:
    """The tile that a table chose, or why it cannot be used."""
    try:
        tile = head_tile(choice)
    except (KeyError, IndexError, TypeError):
        return Refusal(OtherFields(f"no tile of a head has {', '.join(choice)}"))
    asked = _asked(tile.core, problem, usual)
    core = CORES[tile.core][1](asked, device)  # refuses rows that the core is not for
    found = core if isinstance(core, Refusal) else checked(tile.inner, asked, device)
    later = checked(tile.choose, SampleProblem(problem.rows, vocabulary, 0, 0), device)
    if isinstance(found, Refusal):
        return found
    if isinstance(later, Refusal):
        return later
    if isinstance(tile.inner, SkinnyTile) and tile.inner.splits > 1:
        return Refusal("partial sums are no candidates")
    return HeadBest(tile, found.timing, 1, 1)
