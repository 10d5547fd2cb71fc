"""Owns the way from a graph to a plan: blocks solved once, placed in order, buffers laid out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kernelgen.hw.device import Device
from kernelgen.ir.graph import Graph, Role
from kernelgen.ir.types import Dim, Sizes
from kernelgen.planner.cost import unavoidable_bytes
from kernelgen.planner.explain import fusions
from kernelgen.planner.family import Catalogue
from kernelgen.planner.naming import KernelNames
from kernelgen.planner.plan import COUNTERS, Fusion, Kernel, Plan
from kernelgen.planner.plan import SCRATCH as SCRATCH
from kernelgen.planner.schedule import Schedule
from kernelgen.planner.search import BlockSearch, Cut, Solution

DEFAULT_CONTEXT = 1024
MAX_ROWS = 256
"""requests, and logit rows, of one step"""
USUAL_ROWS = 64
"""requests of the step that the one cut of batch-invariant plans is chosen for"""


def plan_sizes(phase: str, size: int, context: int = DEFAULT_CONTEXT) -> Sizes:
    """What a bucket means: `decode` sizes are requests with one token each, `mixed` sizes are
    prompt tokens of one request.
    """
    if phase == "decode":
        return Sizes(tokens=size, rows=size, context=context)
    rows = min(size, MAX_ROWS)
    return Sizes(tokens=size, rows=1, context=max(context, size), row_capacity=rows)


@dataclass
class Planner:
    """Plans one graph for one device; keeps what does not depend on the size between calls."""

    graph: Graph
    device: Device
    target: str
    catalogue: Catalogue
    fusion: bool = True
    context: int = DEFAULT_CONTEXT
    names: KernelNames = field(default_factory=KernelNames)
    invariant: bool = False
    """whether plans of all sizes and both phases have one cut, of kernels that do not vary: a row
    then has the same bits whatever else a step holds"""
    _searches: dict[tuple[int, str], BlockSearch] = field(default_factory=dict)
    _cuts: dict[int, Solution] = field(default_factory=dict)

    def plan(self, phase: str, size: int) -> Plan:
        """The cheapest plan of a phase (`decode`: size requests, `mixed`: size tokens)."""
        sizes = plan_sizes(phase, size, self.context)
        used = sorted({p.block for p in self.graph.sequence})
        searches = {b: self.search(b, phase) for b in used}
        solved = {b: self._solved(b, searches[b], sizes) for b in used}
        kernels = {b: self._kernels(solved[b]) for b in used}
        networks = {b: searches[b].network for b in used}
        schedule = Schedule(self.graph, networks, solved, kernels, sizes)
        launches, workspace = schedule.run()
        times = Counter(p.block for p in self.graph.sequence)
        floor = sum(times[b] * unavoidable_bytes(self.graph.blocks[b], sizes) for b in used)
        return Plan(
            graph=self.graph,
            target=self.target,
            phase=phase,
            size=size,
            sizes=sizes,
            kernels=tuple({k.name: k for b in used for k in kernels[b]}.values()),
            launches=launches,
            fusions=tuple(self._fusions(searches, solved, sizes, times)),
            workspace_bytes=workspace,
            counters=max(cut.price.counters for s in solved.values() for cut in s.cuts),
            candidates=sum(s.candidates + s.refused for s in solved.values()),
            floor_us=floor / (self.device.read_gb_s * 1e3),
            floor_bytes=floor,
            varying=self._varying(),
        )

    def _solved(self, block: int, search: BlockSearch, sizes: Sizes) -> Solution:
        """The cheapest cut at these sizes, or the one that all sizes have."""
        if not self.invariant:
            return search.solve(self.block_sizes(block, sizes), self.device)
        if block not in self._cuts:
            usual = plan_sizes("decode", USUAL_ROWS, self.context)
            self._cuts[block] = search.solve(self.block_sizes(block, usual), self.device)
        return search.priced_again(self._cuts[block], self.block_sizes(block, sizes), self.device)

    def _varying(self) -> Mapping[str, str] | None:
        if not self.invariant:
            return None
        return {family.name: family.varies for family in self.catalogue if family.varies}

    def block_sizes(self, block: int, sizes: Sizes) -> Sizes:
        """The sizes that a block is priced at.

        A GPU's grids are fixed with the plan: where logit rows are counted they hold the most that
        a
        step may ask for. On the CPU the rows of the step decide, and it usually asks one a request.
        """
        counts_rows = any(v.type.leading is Dim.B for v in self.graph.blocks[block].values)
        return sizes.capacity if counts_rows and not self.device.is_cpu else sizes

    def search(self, block: int, phase: str) -> BlockSearch:
        """All legal regions of a block in one phase, found once."""
        if self.invariant:
            phase = "mixed"  # its kernels take any rows; those of a decode step take that alone
        key = (block, phase)
        if key not in self._searches:
            self._searches[key] = BlockSearch(
                self.graph.blocks[block], self.catalogue, phase, self.fusion, self.invariant
            )
        return self._searches[key]

    def _kernels(self, solution: Solution) -> tuple[Kernel, ...]:
        return tuple(
            Kernel(self.names.name(cut.match), cut.match, _signature(cut)) for cut in solution.cuts
        )

    def _fusions(
        self,
        searches: dict[int, BlockSearch],
        solved: dict[int, Solution],
        sizes: Sizes,
        times: Counter[int],
    ) -> Iterator[Fusion]:
        for block, solution in solved.items():
            own = self.block_sizes(block, sizes)
            yield from fusions(searches[block], solution, own, self.device, times[block])


def _signature(cut: Cut) -> tuple[str, ...]:
    """Operands of a kernel: inputs, then outputs that are buffers, then what it needs besides."""
    region = cut.match.region
    outputs = [o for o in region.outputs if region.value(o).role is not Role.STATE]
    besides = [SCRATCH] if cut.price.scratch_bytes else []
    besides += [COUNTERS] if cut.price.counters else []
    return (*region.inputs, *outputs, *besides)
