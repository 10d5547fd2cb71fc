"""Owns the walk over the placements of a graph: seats of streams, and all launches in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelgen.ir.graph import Graph, Role
from kernelgen.ir.types import Sizes
from kernelgen.planner.memory import aligned
from kernelgen.planner.network import Network
from kernelgen.planner.plan import Kernel, Launch
from kernelgen.planner.search import Solution
from kernelgen.planner.wiring import Seat, Surroundings, Wiring, wire


@dataclass
class Schedule:
    """One walk. A layer that finds what another one found is wired as that one was.

    Streams sit in a few seats at the bottom of the workspace, taken in turns; each block's own
    buffers lie around the seats that are in use at that moment.
    """

    graph: Graph
    networks: Mapping[int, Network]
    solved: Mapping[int, Solution]
    kernels: Mapping[int, tuple[Kernel, ...]]
    sizes: Sizes
    seats: list[Seat] = field(default_factory=list)
    held: dict[str, Seat] = field(default_factory=dict)
    """stream → seat that holds it now"""
    wirings: dict[Surroundings, Wiring] = field(default_factory=dict)

    def run(self) -> tuple[tuple[Launch, ...], int]:
        """All launches with final offsets, and the bytes of the workspace."""
        launches: list[Launch] = []
        for placement, around in zip(self.graph.sequence, self._walk(), strict=True):
            wiring = self.wirings.get(around)
            if wiring is None:
                parts = self.solved[around.block], self.kernels[around.block]
                wiring = self.wirings[around] = wire(around, *parts, self.sizes)
            launches += [
                Launch(kernel, placement.layer, operands, cut.price)
                for kernel, operands, cut in zip(
                    self.kernels[around.block],
                    wiring.launches,
                    self.solved[around.block].cuts,
                    strict=True,
                )
            ]
        return tuple(launches), max(w.workspace_bytes for w in self.wirings.values())

    def _walk(self) -> list[Surroundings]:
        """The surroundings of every placement.

        All seats are handed out before the first block is wired. What a placement finds decides
        everything, so equal layers are looked at once for each seat that their input may have.
        """
        last = len(self.graph.sequence) - 1
        known: dict[object, tuple[Surroundings, dict[str, Seat]]] = {}
        found: list[Surroundings] = []
        for at, needed in enumerate(self._needed_after()):
            block = self.graph.sequence[at].block
            key = (block, at == last, needed, tuple(self.held.items()))
            if key not in known:
                around = self._surroundings(block, at == last, needed)
                known[key] = (around, self.held)
            around, self.held = known[key]
            found.append(around)
        return found

    def _surroundings(self, index: int, last: bool, needed: frozenset[str]) -> Surroundings:
        """What the next placement finds and leaves; `held` is what later ones find."""
        block, access = self.graph.blocks[index], self.networks[index].access
        results = {stream: access[value].base for stream, value in block.results}
        made = {s: v for s, v in results.items() if block.value[v].role is Role.TEMP}
        bound = {value: stream for stream, value in made.items()} if last else {}
        before = self.held
        self.held = dict(before)  # what equal surroundings find again must not change
        outputs = self._sit(index, results, needed)
        self.held = {s: seat for s, seat in self.held.items() if s in needed}
        streams = [v.name for v in block.values if v.role is Role.STREAM]
        kept = {seat for seat in before.values() if seat in self.held.values()}
        return Surroundings(
            index,
            tuple((name, before[name]) for name in streams if name in before),
            tuple(outputs.items()),
            tuple(bound.items()),
            tuple(sorted(kept, key=lambda seat: seat.at)),
        )

    def _needed_after(self) -> list[frozenset[str]]:
        """For each placement the streams that a later one reads before any writes them anew."""
        found: list[frozenset[str]] = []
        needed: frozenset[str] = frozenset()
        for placement in reversed(self.graph.sequence):
            found.append(needed)
            block = self.graph.blocks[placement.block]
            written = {stream for stream, _ in block.results}
            read = {v.name for v in block.values if v.role is Role.STREAM}
            needed = (needed - written) | read
        return found[::-1]

    def _sit(
        self, block: int, results: Mapping[str, str], needed: frozenset[str]
    ) -> dict[str, Seat]:
        """Seats for what the block hands on; what it only passes on under a new name stays where it
        is.
        """
        values = self.graph.blocks[block].value
        before, busy = dict(self.held), set(self.held.values())
        taken: dict[str, Seat] = {}
        for stream, base in results.items():
            if stream not in needed:
                continue
            if values[base].role is Role.STREAM:
                self.held[stream] = before[base]
                continue
            if base not in taken:
                size = aligned(values[base].type.size_bytes(self.sizes.capacity))
                taken[base] = self._free_seat(size, busy)
                busy.add(taken[base])
            self.held[stream] = taken[base]
        return taken

    def _free_seat(self, size: int, busy: set[Seat]) -> Seat:
        """The lowest free seat of that size, or a new one."""
        for seat in self.seats:
            if seat.bytes == size and seat not in busy:
                return seat
        start = self.seats[-1].at + self.seats[-1].bytes if self.seats else 0
        self.seats.append(Seat(start, size))
        return self.seats[-1]
