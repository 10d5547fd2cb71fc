"""Owns which kernels are worth measuring: those of the plan, and of plans nearly as fast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kernelgen.hw.device import Device
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Match, Price, Refusal
from kernelgen.planner.search import BlockSearch, Cut

_ANCHORS = Trait.MATMUL | Trait.ATTENTION
_WORTH = 0.04
"""of a kernel's time: what doing less in it has to save before that is worth measuring"""


@dataclass(frozen=True)
class Wanted:
    """One kernel of a block, and how much slower the best plan with it is predicted to be."""

    match: Match
    price: Price
    chosen: bool
    penalty_us: float


@dataclass
class _Lattice:
    """Best costs from nothing done to each state and on to all done, with the way there."""

    search: BlockSearch
    cuts: Mapping[int, Cut]
    least: float = 0.0
    through: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    """kernel → cost of the best plan with it, and the states before and after it there"""
    _ahead: dict[int, tuple[float, int]] = field(default_factory=dict)
    _left: dict[int, tuple[float, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        full = self.search.network.full
        edges = self._forward()
        self._left = {full: (0.0, 0)}
        for done, mask in reversed(edges):
            state = done | mask
            if state not in self._left:
                continue
            rest = self.cuts[mask].price.us + self._left[state][0]
            if done not in self._left or rest < self._left[done][0]:
                self._left[done] = (rest, mask)
            whole = self._ahead[done][0] + rest
            if mask not in self.through or whole < self.through[mask][0]:
                self.through[mask] = (whole, done, state)
        self.least = self._left[0][0]

    def _forward(self) -> list[tuple[int, int]]:
        """Every (state, kernel that may follow), small states first."""
        net = self.search.network
        steps = [(mask, net.needs(mask), cut.price.us) for mask, cut in self.cuts.items()]
        waves: list[dict[int, None]] = [{} for _ in range(len(net.nodes) + 1)]
        waves[0][0] = None
        self._ahead = {0: (0.0, 0)}
        edges: list[tuple[int, int]] = []
        for wave in waves:
            for done in wave:
                for mask, needs, us in steps:
                    if mask & done or needs & ~done:
                        continue
                    state = done | mask
                    edges.append((done, mask))
                    waves[state.bit_count()][state] = None
                    cost = self._ahead[done][0] + us
                    if state not in self._ahead or cost < self._ahead[state][0]:
                        self._ahead[state] = (cost, mask)
        return edges

    def path(self, mask: int) -> Iterator[int]:
        """The kernels of the best plan with this one."""
        yield mask
        _, before, after = self.through[mask]
        while before:
            step = self._ahead[before][1]
            yield step
            before &= ~step
        while after != self.search.network.full:
            step = self._left[after][1]
            yield step
            after |= step


def wanted_kernels(
    search: BlockSearch, sizes: Sizes, device: Device, factor: float
) -> tuple[Wanted, ...]:
    """The plan's kernels, and those of plans that fuse otherwise around the same products.

    Such a plan may be predicted to cost more than the best one by up to `factor − 1` of the kernel
    in question. Other families for the same ops count as well. What surrounds an alternative is
    wanted too: a measured kernel can only be compared with measured ones.
    """
    priced: dict[int, list[Cut]] = {}
    for mask in search.matches:
        for match in search.match(mask):
            price = match.family.price(match, sizes, device)
            if not isinstance(price, Refusal):
                priced.setdefault(mask, []).append(Cut(match, price))
    for cuts in priced.values():
        cuts.sort(key=lambda cut: cut.price.us)
    lattice = _Lattice(search, {mask: cuts[0] for mask, cuts in priced.items()})
    plan = [cut.match.region.mask for cut in search.solve(sizes, device).cuts]
    found: dict[tuple[int, str], Wanted] = {}

    def want(mask: int, cut: Cut) -> None:
        penalty = lattice.through[mask][0] - lattice.least + cut.price.us - priced[mask][0].price.us
        chosen = mask in plan and cut is priced[mask][0]
        found.setdefault(
            (mask, cut.match.family.name), Wanted(cut.match, cut.price, chosen, max(0.0, penalty))
        )

    for mask in plan:
        want(mask, priced[mask][0])
    for mask, cuts in priced.items():
        if mask not in lattice.through or not _worth(search, mask, plan, priced):
            continue
        for cut in cuts:
            extra = lattice.through[mask][0] - lattice.least + cut.price.us - cuts[0].price.us
            if extra <= (factor - 1) * cut.price.us:
                want(mask, cut)
                for other in lattice.path(mask):
                    want(other, priced[other][0])
    return tuple(found.values())


def _worth(
    search: BlockSearch, mask: int, plan: list[int], priced: Mapping[int, list[Cut]]
) -> bool:
    """Whether a region does the products of one kernel of the plan in another way."""
    nodes = search.network.nodes

    def anchors(region: int) -> int:
        return sum(1 << i for i, n in enumerate(nodes) if region >> i & 1 and n.op.has(_ANCHORS))

    mine = anchors(mask)
    for taken in plan:
        if not mine or anchors(taken) != mine:
            continue
        if mask & ~taken or mask == taken or mine.bit_count() > 1:
            return True
        us = priced[taken][0].price.us
        return us - priced[mask][0].price.us >= _WORTH * us
    return False
