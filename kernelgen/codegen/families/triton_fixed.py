"""Owns the GPU families of batch-invariant builds: one tile for every size, none by the size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernelgen.codegen.families.triton_choice import Best, best
from kernelgen.codegen.families.triton_family import TritonFamily
from kernelgen.codegen.families.triton_gemm import space
from kernelgen.codegen.families.triton_product import Product
from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Match, Price, Refusal
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


@lru_cache(maxsize=4096)
def gemm_of_any(problem: Product, device: Device) -> Best[Product] | Refusal:
    """The best tile of the many-row product, however few the rows are."""
    return best(space(), problem, device)
