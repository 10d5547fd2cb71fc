"""Owns the way from a graph to a plan: blocks solved once, placed in order, buffers given places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from kernelgen.hw.device import Device
from kernelgen.ir.graph import Graph, Role
from kernelgen.ir.types import Sizes
from kernelgen.planner.cost import unavoidable_bytes
from kernelgen.planner.explain import fusions
from kernelgen.planner.family import Catalogue
from kernelgen.planner.memory import Lifetime, place
from kernelgen.planner.naming import KernelNames
from kernelgen.planner.plan import Fusion, Kernel, Launch, Operand, Plan
from kernelgen.planner.search import BlockSearch, Cut, Solution

SCRATCH = "scratch"
DEFAULT_CONTEXT = 1024


def plan_sizes(phase: str, size: int, context: int = DEFAULT_CONTEXT) -> Sizes:
    """What a bucket means: `decode` sizes are requests with one token each, `mixed` sizes are prompt tokens of one request."""
    if phase == "decode":
        return Sizes(tokens=size, rows=size, context=context)
    return Sizes(tokens=size, rows=1, context=max(context, size))


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
    _searches: dict[tuple[int, str], BlockSearch] = field(default_factory=dict)

    def plan(self, phase: str, size: int) -> Plan:
        """The cheapest plan of a phase (`decode`: size requests, `mixed`: size tokens)."""
        sizes = plan_sizes(phase, size, self.context)
        used = sorted({p.block for p in self.graph.sequence})
        searches = {b: self._search(b, phase) for b in used}
        solved = {b: searches[b].solve(sizes, self.device) for b in used}
        kernels = {b: self._kernels(solved[b]) for b in used}
        launches, workspace = _Schedule(self.graph, solved, kernels, sizes).run()
        floor = sum(unavoidable_bytes(self.graph.blocks[p.block], sizes) for p in self.graph.sequence)
        return Plan(
            graph=self.graph,
            target=self.target,
            phase=phase,
            size=size,
            sizes=sizes,
            kernels=tuple({k.name: k for b in used for k in kernels[b]}.values()),
            launches=launches,
            fusions=tuple(self._fusions(searches, solved, sizes)),
            workspace_bytes=workspace,
            candidates=sum(s.candidates + s.refused for s in solved.values()),
            floor_us=floor / (self.device.read_gb_s * 1e3),
            floor_bytes=floor,
        )

    def _search(self, block: int, phase: str) -> BlockSearch:
        key = (block, phase)
        if key not in self._searches:
            self._searches[key] = BlockSearch(
                self.graph.blocks[block], self.catalogue, phase, self.fusion
            )
        return self._searches[key]

    def _kernels(self, solution: Solution) -> tuple[Kernel, ...]:
        return tuple(
            Kernel(self.names.name(cut.match), cut.match, _signature(cut)) for cut in solution.cuts
        )

    def _fusions(
        self, searches: dict[int, BlockSearch], solved: dict[int, Solution], sizes: Sizes
    ) -> Iterator[Fusion]:
        times = Counter(p.block for p in self.graph.sequence)
        for block, solution in solved.items():
            yield from fusions(searches[block], solution, sizes, self.device, times[block])


def _signature(cut: Cut) -> tuple[str, ...]:
    """Operands of a kernel: inputs, then outputs that are buffers, then scratch."""
    region = cut.match.region
    outputs = [o for o in region.outputs if region.value(o).role is not Role.STATE]
    scratch = [SCRATCH] if cut.price.scratch_bytes else []
    return (*region.inputs, *outputs, *scratch)


@dataclass
class _Schedule:
    """One walk over the placements: what each launch is given, and how long each buffer lives."""

    graph: Graph
    solved: dict[int, Solution]
    kernels: dict[int, tuple[Kernel, ...]]
    sizes: Sizes
    stream: dict[str, str] = field(default_factory=dict)
    """stream name → buffer that holds it now"""
    lives: dict[str, Lifetime] = field(default_factory=dict)
    drafts: list[tuple[Kernel, Cut, int | None, list[Operand]]] = field(default_factory=list)

    def run(self) -> tuple[tuple[Launch, ...], int]:
        """All launches with final offsets, and the bytes of the workspace."""
        last = len(self.graph.sequence) - 1
        for at, placement in enumerate(self.graph.sequence):
            block = self.graph.blocks[placement.block]
            solution = self.solved[placement.block]
            access = solution.network.access
            bound = {access[v].base: s for s, v in block.results} if at == last else {}
            for kernel, cut in zip(self.kernels[placement.block], solution.cuts, strict=True):
                operands = [
                    self._operand(name, at, placement.layer, cut, bound) for name in kernel.signature
                ]
                self.drafts.append((kernel, cut, placement.layer, operands))
            self.stream |= {s: f"{at}:{access[v].base}" for s, v in block.results}
        layout = place(tuple(self.lives.values()))
        launches = tuple(
            Launch(kernel, layer, tuple(_placed(o, layout.offsets) for o in operands), cut.price)
            for kernel, cut, layer, operands in self.drafts
        )
        return launches, layout.bytes

    def _operand(
        self, name: str, at: int, layer: int | None, cut: Cut, bound: dict[str, str]
    ) -> Operand:
        if name == SCRATCH:
            return self._buffer(f"{at}:{SCRATCH}:{len(self.drafts)}", cut.price.scratch_bytes)
        value = cut.match.region.value(name)
        if value.role in (Role.WEIGHT, Role.TABLE):
            return Operand("weight", self.graph.weight_name(value, layer))
        if value.role is Role.STATE:
            return Operand("state", "cache", layer=layer)
        if value.role is Role.STEP:
            return Operand("step", name)
        if name in bound:
            return Operand("bound", bound[name])
        key = self.stream[name] if value.role is Role.STREAM else f"{at}:{name}"
        return self._buffer(key, value.type.size_bytes(self.sizes))

    def _buffer(self, key: str, size: int) -> Operand:
        """Extend the buffer's life to the launch that is being drafted."""
        now = len(self.drafts)
        known = self.lives.get(key)
        self.lives[key] = Lifetime(key, size, known.first if known else now, now)
        return Operand("buffer", key)


def _placed(operand: Operand, offsets: dict[str, int]) -> Operand:
    if operand.kind != "buffer":
        return operand
    return Operand("buffer", operand.name.partition(":")[2], offsets[operand.name], operand.layer)
