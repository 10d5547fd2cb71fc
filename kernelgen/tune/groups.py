"""Owns the groups of a model: kernels worth measuring at each size, with tiles and launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelgen.codegen.cuda.launches import GpuKernel, GpuPass, Grid
from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.families.triton_family import Quote, TritonFamily
from kernelgen.codegen.triton.dispatch import gpu_kernel
from kernelgen.codegen.triton.kernels import StepLayout
from kernelgen.codegen.triton.source import source_digest
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Graph, Role
from kernelgen.ir.types import Dim, Sizes
from kernelgen.planner.family import Match, Price, Refusal
from kernelgen.planner.naming import KernelNames
from kernelgen.planner.plan import COUNTERS, SCRATCH, Kernel
from kernelgen.planner.planner import plan_sizes
from kernelgen.planner.search import BlockSearch
from kernelgen.tables import Bucket, Tables, Verdict
from kernelgen.tune.bundle import ALTERNATIVE, Pruned
from kernelgen.tune.contexts import contexts_of
from kernelgen.tune.regions import Wanted, wanted_kernels
from kernelgen.tune.selection import Selected, select
from kernelgen.tune.spaces import space_of, with_choice

_NO_ROWS = Path("/dev/null/no-rows")  # no folder can be there: everything is modelled


@dataclass(frozen=True)
class Tile:
    """A selected tile with its launches, not yet compiled."""

    selected: Selected
    kernel: GpuKernel
    grids: tuple[Grid, ...]
    scratch_bytes: int
    counters: int
    source: str
    """digest of its generated code, as rows have it"""

    @property
    def units(self) -> tuple[TritonUnit, ...]:
        """What has to be compiled for it."""
        return tuple(one.unit for one in self.kernel.passes)


@dataclass
class Planned:
    """One kernel variant at one size, before anything is compiled."""

    kernel: Kernel
    bucket: Bucket
    sizes: Sizes
    price: Price
    chosen: bool
    before: Price
    """what a build does today"""
    tiles: tuple[Tile, ...]
    looked_at: int
    pruned: tuple[Pruned, ...]
    elsewhere: tuple[int, ...] = ()
    """other contexts that the plan serves and candidates are ranked by"""
    placements: int = 0
    layers: tuple[int, ...] = ()
    step_us: float = 0.0

    @property
    def code(self) -> str:
        """Digest of the generated code of the first tile; empty without tiles."""
        return self.tiles[0].source if self.tiles else ""

    @property
    def weight(self) -> float:
        """Share of the step, as `Group.weight` has it."""
        share = self.price.us * self.placements / self.step_us
        return share * (1 if self.chosen else ALTERNATIVE)

    @property
    def key(self) -> tuple[str, str, str]:
        """Family, variant, bucket."""
        return (self.kernel.match.family.name, self.kernel.match.variant, str(self.bucket))


@dataclass
class ModelGroups:
    """Finds the groups of one model; keeps what sizes have in common."""

    graph: Graph
    device: Device
    layout: StepLayout
    tables: Tables
    effort: str
    factor: float
    families: frozenset[str] = frozenset()
    """only these; empty means all"""
    missing: bool = False
    """only those without a row of their own size that counts"""
    names: KernelNames = field(default_factory=KernelNames)
    _known: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    _searches: dict[tuple[int, str, bool], BlockSearch] = field(default_factory=dict)
    _made: dict[tuple[str, str], GpuKernel] = field(default_factory=dict)

    def at(self, bucket: Bucket) -> tuple[Planned, ...]:
        """All groups of a bucket; equal kernels of several blocks are one."""
        times = Counter(p.block for p in self.graph.sequence)
        found: dict[tuple[str, str, str], Planned] = {}
        step_us = 0.0
        for block, count in sorted(times.items()):
            layers = {
                p.layer for p in self.graph.sequence if p.block == block and p.layer is not None
            }
            for wanted in self._wanted(block, bucket):
                step_us += wanted.price.us * count * wanted.chosen
                planned = self._planned(block, wanted, bucket)
                if planned is None:
                    continue
                known = found.setdefault(planned.key, planned)
                known.placements += count
                known.layers = tuple(sorted({*known.layers, *layers}))
                known.chosen |= wanted.chosen
        for planned in found.values():
            planned.step_us = step_us
        return tuple(found.values())

    def _wanted(self, block: int, bucket: Bucket) -> Iterator[Wanted]:
        """Kernels of the modelled plan and its rivals, and those that a build uses today."""
        sizes = self._sizes(block, bucket)
        model = self._search(block, bucket.phase, informed=False)
        found = wanted_kernels(model, sizes, self.device, self.factor)
        yield from found
        have = {(w.match.family.name, w.match.region.mask) for w in found}
        informed = self._search(block, bucket.phase, informed=True)
        for cut in informed.solve(sizes, self.device).cuts:
            place = (cut.match.family.name, cut.match.region.mask)
            match = self._same(model, cut.match)
            price = match and match.family.price(match, sizes, self.device)
            if place not in have and match and isinstance(price, Price):
                yield Wanted(match, price, False, 0.0)

    def _sizes(self, block: int, bucket: Bucket) -> Sizes:
        """What the planner prices a block at: all logit rows that a step may ask for."""
        sizes = plan_sizes(bucket.phase, bucket.size)
        leading = {v.type.leading for v in self.graph.blocks[block].values}
        return sizes.capacity if Dim.B in leading else sizes

    def _search(self, block: int, phase: str, *, informed: bool) -> BlockSearch:
        key = (block, phase, informed)
        if key not in self._searches:
            tables = self.tables if informed else Tables(_NO_ROWS)
            families = catalogue(self.device, tables)
            self._searches[key] = BlockSearch(self.graph.blocks[block], families, phase)
        return self._searches[key]

    @staticmethod
    def _same(search: BlockSearch, match: Match) -> Match | None:
        """The match of the same family for the same ops in another search."""
        named = (m for m in search.match(match.region.mask) if m.family.name == match.family.name)
        return next(named, None)

    def _planned(self, block: int, wanted: Wanted, bucket: Bucket) -> Planned | None:
        match, sizes = wanted.match, self._sizes(block, bucket)
        name = match.family.name
        if self.families and name not in self.families:
            return None
        before = self._today(block, match, bucket, sizes)
        if self.missing and before.verdict == Verdict.EXACT.value:
            return None
        space = space_of(match, sizes, self.device)
        if isinstance(space, Refusal) or not space.points:
            return None
        space = with_choice(space, match, sizes, self.device, before.choice)
        known = self._known.setdefault((name, match.variant), set())
        selected, pruned = select(name, space, self.effort, before.choice, known)
        known |= {s.point.text for s in selected}
        kernel = Kernel(self.names.name(match), match, _signature(match, wanted.price))
        whole = plan_sizes(bucket.phase, bucket.size)
        tiles = tuple(
            self._tile(kernel, s, quote, kernel.launch_sizes(whole))
            for s in selected
            if isinstance(quote := self._quote(match, sizes, s), Quote)
        )
        return Planned(
            kernel,
            bucket,
            whole,
            wanted.price,
            wanted.chosen,
            before,
            tiles,
            space.looked_at,
            pruned,
            contexts_of(match, sizes, self.layout.args.max_pages),
        )

    def _today(self, block: int, match: Match, bucket: Bucket, sizes: Sizes) -> Price:
        informed = self._search(block, bucket.phase, informed=True)
        same = self._same(informed, match)
        price = same and same.family.price(same, sizes, self.device)
        assert isinstance(price, Price)
        return price

    def _quote(self, match: Match, sizes: Sizes, selected: Selected) -> Quote | Refusal:
        """What the family says of the tile when it stands in a row: that is how builds read it."""
        family = match.family
        assert isinstance(family, TritonFamily)
        return family.quote(match.region, match.roles, sizes, self.device, selected.point.choice)

    def _tile(self, kernel: Kernel, selected: Selected, quote: Quote, sizes: Sizes) -> Tile:
        key = (kernel.name, selected.point.text)
        if key not in self._made:
            made = gpu_kernel(kernel, selected.point.choice, self.layout)
            self._made[key] = GpuKernel(tuple(_named(p, kernel, selected) for p in made.passes))
        made = self._made[key]
        return Tile(
            selected,
            made,
            tuple(one.grid(sizes) for one in made.passes),
            quote.scratch_bytes,
            quote.counters,
            source_digest(kernel, selected.point.choice),
        )


def _signature(match: Match, price: Price) -> tuple[str, ...]:
    """Operands of a kernel: inputs, outputs that are buffers, then what it needs besides."""
    region = match.region
    outputs = [o for o in region.outputs if region.value(o).role is not Role.STATE]
    besides = [SCRATCH] if price.scratch_bytes else []
    besides += [COUNTERS] if price.counters else []
    return (*region.inputs, *outputs, *besides)


def _named(one: GpuPass, kernel: Kernel, selected: Selected) -> GpuPass:
    """A pass whose unit is named after the whole tile: two tiles may differ in nothing but what the
    generator leaves out of its own names.
    """
    words = "_".join(f"{name[0]}{value}" for name, value in selected.point.choice.items())
    return replace(one, unit=replace(one.unit, name=f"{one.unit.function}_{words}"))
