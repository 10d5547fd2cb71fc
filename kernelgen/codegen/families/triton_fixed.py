"""Owns the GPU families of batch-invariant builds: one tile for every size, none by the size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.roles import AttentionRoles
from kernelgen.codegen.families.triton_choice import Best, best, given
from kernelgen.codegen.families.triton_family import Quote, TritonFamily
from kernelgen.codegen.families.triton_gemm import space
from kernelgen.codegen.families.triton_prefill import PrefillProblem, PrefillTile, prefill_problem
from kernelgen.codegen.families.triton_prefill import space as prefill_space
from kernelgen.codegen.families.triton_product import Product
from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Match, Price, Refusal
from kernelgen.planner.network import Region
from kernelgen.tables import LookUp, Verdict

SOME = Sizes(tokens=64, rows=64, context=1024)
"""where products and attention choose their tile: between a single request and a long prompt"""
ONE = Sizes(tokens=1, rows=1, context=1024)
"""where rows choose: a block that takes one row takes it in a step of any size"""
MOST = Sizes(tokens=256, rows=256, context=1024)
"""where the choice of tokens does: no more parts of a row than all rows of a step have room for"""
_ONE_TILE = LookUp(Verdict.MODELLED, "one tile for every size")


@dataclass(frozen=True)
class FixedFamily(TritonFamily):
    """A template that adds up in one order however many rows a step has.

    Its tile follows from the matched ops and the device, never from the size: it is the best one at
    `reference`. Rows of tables are measured size by size and are not asked.
    """

    reference: Sizes = SOME

    def price(self, match: Match, sizes: Sizes, device: Device) -> Price | Refusal:
        """The modelled time of the one tile; refused where it is illegal at these sizes."""
        chosen = self._chosen(match, device)
        if isinstance(chosen, Refusal):
            return chosen
        quote = self.quote(match.region, match.roles, sizes, device, chosen)
        if isinstance(quote, Refusal):
            return quote
        return self._modelled(quote, device, _ONE_TILE)

    def _chosen(self, match: Match, device: Device) -> Mapping[str, int] | Refusal:
        def find() -> Mapping[str, int] | Refusal:
            quote = self.quote(match.region, match.roles, self.reference, device)
            return quote if isinstance(quote, Refusal) else quote.best.choice

        place = ("one tile", self.name, device.target, device.refused_tiles)
        return match.region.recall(place, find)


@lru_cache(maxsize=1024)
def attention_of_any(problem: PrefillProblem, device: Device) -> Best[PrefillProblem] | Refusal:
    """A tile of prompt attention that a single query can live with too: one block walks all keys of
    its cache head, so steps are long, and 64 rows have the wide instructions of sm_90.
    """
    long = (t for t in prefill_space() if t.rows == 64 and t.tokens >= 64)
    found = best(long, problem, device)
    return best(prefill_space(), problem, device) if isinstance(found, Refusal) else found


def quote_attention(
    region: Region,
    roles: AttentionRoles,
    sizes: Sizes,
    device: Device,
    choice: Mapping[str, int] | None = None,
) -> Quote | Refusal:
    """Attention of any step: one query of a request is a prompt of one token."""
    problem = prefill_problem(region, roles, sizes, device)
    if choice is None:
        found = attention_of_any(problem, device)
    else:
        found = given(PrefillTile, choice, problem, device)
    if isinstance(found, Refusal):
        return found
    return Quote(found, problem.bytes, problem.flops, problem)


@lru_cache(maxsize=4096)
def gemm_of_any(problem: Product, device: Device) -> Best[Product] | Refusal:
    """The best tile of the many-row product, however few the rows are."""
    return best(space(), problem, device)
