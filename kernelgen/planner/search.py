"""Owns the search: every way to cut a block into kernels, and the cheapest of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NoReturn

from kernelgen.core.errors import UnsupportedError
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Block
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Catalogue, Family, Match, Price, Refusal
from kernelgen.planner.network import Network, Region, bits

NOBODY = Refusal("no family of this target joins these ops in one kernel")


@dataclass(frozen=True)
class Cut:
    """One kernel of a solved block."""

    match: Match
    price: Price


@dataclass(frozen=True)
class Solution:
    """A block cut into kernels, in order of execution."""

    network: Network
    cuts: tuple[Cut, ...]
    candidates: int
    """regions that some family could take"""
    refused: int
    """regions that were looked at and refused"""

    @property
    def us(self) -> float:
        """Predicted time of one placement."""
        return sum(c.price.us for c in self.cuts)


@dataclass
class BlockSearch:
    """All legal regions of a block in one phase, found once; `solve` prices them for each size."""

    block: Block
    catalogue: Catalogue
    phase: str
    fusion: bool = True
    invariant: bool = False
    """whether kernels whose order of additions depends on the size of a step are refused"""
    network: Network = field(init=False)
    matches: dict[int, tuple[Match, ...]] = field(init=False)
    refused: dict[int, Refusal] = field(init=False)

    def __post_init__(self) -> None:
        self.network = Network(self.block)
        self.matches, self.refused = {}, {}
        frontier = []
        for i, node in enumerate(self.network.nodes):
            if not self._try(1 << i):
                why = self.refused[1 << i].reason
                raise UnsupportedError(
                    f"no kernel family covers {node.op.kind} ({node.name}): {why}",
                    where=f"block {self.block.name}",
                )
            frontier.append(1 << i)
        while frontier and self.fusion:
            frontier = [m for mask in frontier for m in self._grown(mask) if self._try(m)]

    def _grown(self, mask: int) -> list[int]:
        """Convex regions with one node more that nobody has looked at yet."""
        near = 0
        for i in bits(mask):
            near |= self.network.neighbours[i]
        bigger = [mask | 1 << i for i in bits(near & ~mask)]
        new = [m for m in bigger if m not in self.matches and m not in self.refused]
        return [m for m in new if self.network.convex(m)]

    def _try(self, mask: int) -> bool:
        """Ask every family; remember matches or the most telling reason."""
        if mask in self.matches or mask in self.refused:
            return False
        found, reason = self.ask(mask)
        if found:
            self.matches[mask] = found
        else:
            self.refused[mask] = reason
        return bool(found)

    def ask(self, mask: int) -> tuple[tuple[Match, ...], Refusal]:
        """Matches of all families, and the first refusal."""
        region = Region(self.network, mask)
        answers = [self._answer(family, region) for family in self.catalogue]
        refusals = [a for a in answers if isinstance(a, Refusal)]
        return tuple(a for a in answers if isinstance(a, Match)), (refusals or [NOBODY])[0]

    def _answer(self, family: Family, region: Region) -> Match | Refusal | None:
        answer = family.match(region, self.phase)
        if self.invariant and family.varies and isinstance(answer, Match):
            return Refusal(f"{family.name}: {family.varies}")
        return answer

    def match(self, mask: int) -> tuple[Match, ...]:
        """Families that take a region, also one that the search never came to."""
        return self.matches.get(mask) or self.ask(mask)[0]

    def refusal(self, mask: int) -> Refusal:
        """Why no family takes a region."""
        return self.refused.get(mask) or self.ask(mask)[1]

    def price(self, mask: int, sizes: Sizes, device: Device) -> Cut | Refusal:
        """The cheapest kernel for a region, or why every one is impossible at these sizes."""
        best: Cut | None = None
        why: list[str] = []
        for match in self.match(mask):
            price = match.family.price(match, sizes, device)
            if isinstance(price, Refusal):
                why.append(f"{match.family.name}: {price.reason}")
            elif best is None or price.cost_us < best.price.cost_us:
                best = Cut(match, price)
        if best is not None:
            return best
        return Refusal("; ".join(why)) if why else self.refusal(mask)

    def solve(self, sizes: Sizes, device: Device) -> Solution:
        """The exact optimum over all cuts and orders: shortest path from nothing done to all done.

        `UnsupportedError` naming the op and the limit when some op has no kernel at these sizes.
        """
        priced = {mask: self.price(mask, sizes, device) for mask in self.matches}
        cuts = {mask: cut for mask, cut in priced.items() if isinstance(cut, Cut)}
        steps = [(mask, self.network.needs(mask), cut) for mask, cut in cuts.items()]
        best: dict[int, tuple[float, int, Cut | None]] = {0: (0.0, 0, None)}
        waves: list[list[int]] = [[] for _ in range(len(self.network.nodes) + 1)]
        waves[0].append(0)
        for wave in waves:  # a state's cost is final once all smaller states have been extended
            for done in wave:
                for mask, needs, cut in steps:
                    if mask & done or needs & ~done:
                        continue
                    cost, state = best[done][0] + cut.price.cost_us + _tie(cut), done | mask
                    if state not in best:
                        waves[state.bit_count()].append(state)
                    if state not in best or cost < best[state][0] - 1e-9:
                        best[state] = (cost, done, cut)
        if self.network.full not in best:
            self._raise_uncovered(priced)
        return Solution(
            self.network, _path(best, self.network.full), len(self.matches), len(self.refused)
        )

    def priced_again(self, solution: Solution, sizes: Sizes, device: Device) -> Solution:
        """The same cut at other sizes. `UnsupportedError` where a kernel is impossible there."""
        cuts = []
        for cut in solution.cuts:
            price = cut.match.family.price(cut.match, sizes, device)
            if isinstance(price, Refusal):
                raise UnsupportedError(
                    f"{cut.match.family.name}: {price.reason}", where=f"block {self.block.name}"
                )
            cuts.append(Cut(cut.match, price))
        return replace(solution, cuts=tuple(cuts))

    def _raise_uncovered(self, priced: dict[int, Cut | Refusal]) -> NoReturn:
        covered = 0
        for mask, answer in priced.items():
            covered |= mask if isinstance(answer, Cut) else 0
        left = bits(self.network.full & ~covered)
        why = [
            f"{self.network.nodes[i].name}: {answer.reason}"
            for i in left
            if isinstance(answer := priced[1 << i], Refusal)
        ]
        text = "; ".join(why) or "no sequence of legal kernels covers all ops"
        raise UnsupportedError(text, where=f"block {self.block.name}")


def _tie(cut: Cut) -> float:
    """Of two cuts that arithmetic makes equally slow the one that moves less wins: a nanosecond
    a gigabyte."""
    return cut.price.bytes * 1e-12


def _path(best: dict[int, tuple[float, int, Cut | None]], full: int) -> tuple[Cut, ...]:
    """The kernels on the way to `full`, in order."""
    path: list[Cut] = []
    state = full
    while state:
        _, state, cut = best[state]
        assert cut is not None
        path.append(cut)
    return tuple(reversed(path))
