"""Owns trying a generated kernel of scans and latent rows: pools of pages, interpreter, float64."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gpu_trials import DEVICE, Tiny, named

from kernelgen.codegen.cuda.launches import (
    BlockTable,
    Constant,
    LayerOffset,
    Matrix,
    Operand,
    Parameter,
    Pointer,
)
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.manifest import sub_graph
from kernelgen.codegen.triton.dispatch import gpu_kernel
from kernelgen.ir.codec import block_from_json
from kernelgen.ir.graph import Role, Value
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.ops.registry import op_kinds
from kernelgen.ops.step import DenseRows, DenseState, StepView
from kernelgen.planner.caches import PAGE_TOKENS
from kernelgen.planner.family import Match
from kernelgen.planner.network import Network, Region
from kernelgen.planner.plan import COUNTERS, SCRATCH, Kernel
from kernelgen.verify.guarded import Guarded
from kernelgen.verify.interpreter import interpret

SCRATCH_BYTES = 1 << 23


@dataclass(frozen=True)
class Row:
    """One request row: `before` tokens are done, `count` come; `mark`: tokens of the sequence after
    which a state is kept, 0 for none. `padding` rows do nothing."""

    before: int
    count: int
    mark: int = 0
    padding: bool = False
    in_place: bool = False
    """whether the state after the step takes the page of the one before it"""


@dataclass
class ScanTrial:
    """One kernel of a layer with one tile, on some request rows, in a plan of `capacity` tokens."""

    model: Tiny
    kernel: Kernel
    choice: Mapping[str, int]
    rows: tuple[Row, ...]
    capacity: int
    layer: int
    scale: Mapping[str, float] = field(default_factory=dict)
    """size of the random numbers of a value, by the end of its name"""

    def errors(self) -> dict[str, float]:
        """Largest error of every output and state, relative to the largest number in it; raises
        AssertionError where anything else was touched."""
        self._prepare()
        made = gpu_kernel(self.kernel, self.choice, self.model.layout)
        requests = self.capacity if self.kernel.match.phase == "decode" else 4
        sizes = Sizes(self.capacity, requests, 64, self.capacity)
        for one in made.passes:
            grid = one.grid(sizes)
            interpret(one.unit, grid, [self._argument(p, sizes) for p in one.parameters])
        return self._compared()

    def _prepare(self) -> None:
        model = self.model
        seed = zlib.crc32(f"{self.kernel.match.variant} {self.rows}".encode())
        self.random = torch.Generator().manual_seed(seed)
        self.tokens = sum(r.count for r in self.rows)
        self.owners = [
            -1 if r.padding else n for n, r in enumerate(self.rows) for _ in range(r.count)
        ]
        self.positions = [r.before + i for r in self.rows for i in range(r.count)]
        self._write_args()
        schema = model.schema
        pages = 1 + int(self.table.max()) + 2
        self.cache = torch.full((pages, schema.page_bytes), 255, dtype=torch.uint8)
        self.states = torch.full(
            (3 * len(self.rows) + 2, schema.state_bytes), 255, dtype=torch.uint8
        )
        self.block = block_from_json(sub_graph(self.kernel), op_kinds())
        self.meant: dict[str, Any] = {}
        self.given = {name: self._operand(name) for name in self.kernel.signature}
        lists = {"positions": self.positions, "rows": self.owners}
        self.steps = {
            name: Guarded.of(torch.tensor(v + [-1] * (self.capacity - len(v)), dtype=torch.int32))
            for name, v in lists.items()
        }
        self.before = self.cache.clone(), self.states.clone()

    def _write_args(self) -> None:
        args = self.model.args
        words = np.full(args.words, -123456789, np.int32)

        def put(name: str, *values: int, at: int = 0) -> None:
            start = args.offset(name) + at
            words[start : start + len(values)] = values

        put("counts", self.tokens, len(self.rows), 0, 0)
        starts = np.cumsum([0, *(r.count for r in self.rows)])
        put("row_query_start", *starts.tolist())
        self.pages = []
        entries = [-(-(r.before + r.count) // PAGE_TOKENS) for r in self.rows]
        order = 1 + torch.randperm(sum(entries), generator=self.random).numpy()
        self.table = np.zeros((len(self.rows), max(entries)), np.int64)
        for n, row in enumerate(self.rows):
            put("row_slot", -1 if row.padding else n, at=n)
            put("row_seq_len", 0 if row.padding else row.before + row.count, at=n)
            old = 1 + 3 * n
            new = old if row.in_place else old + 1
            self.pages.append((old, new, old + 2))
            put("state_from", old if row.before else 0, at=n)
            put("state_to", 0 if row.padding else new, at=n)
            put("state_mark", old + 2 if row.mark else 0, at=n)
            put("state_mark_at", row.mark, at=n)
            mine, order = order[: entries[n]], order[entries[n] :]
            self.table[n, : entries[n]] = 0 if row.padding else mine
            for group in self.model.schema.token_groups:
                at = n * args.max_pages
                put(f"block_table.{group.name}", *self.table[n].tolist(), at=at)
        self.args = Guarded.of(torch.from_numpy(words))

    def _operand(self, name: str) -> Guarded:
        if name == SCRATCH:
            return Guarded((SCRATCH_BYTES,), "uint8")
        if name == COUNTERS:
            return Guarded.of(torch.zeros(4096, dtype=torch.int32))
        region = self.kernel.match.region
        value = region.value(name)
        if value.role is Role.STATE:
            self._state(value)
            return Guarded((1,), "uint8")
        if value.role is Role.STEP:
            return Guarded((1,), "int32")
        kind = getattr(torch, value.type.dtype.torch)
        shape = tuple(Sizes(self.capacity, self.capacity, 64).of(d) for d in value.type.shape)
        if name in region.outputs:
            return Guarded(shape, value.type.dtype.name)
        made = torch.randn(shape, generator=self.random)
        if value.role is Role.WEIGHT and len(shape) > 1:
            made = made / shape[-1] ** 0.5
        made = made * next((s for end, s in self.scale.items() if name.endswith(end)), 1.0)
        self.meant[name] = made = made.to(kind)
        if value.type.leading is not None:
            made = made.clone()
            made[self.tokens :] = float("nan")
        return Guarded.of(made)

    def _scans(self, name: str) -> bool:
        nodes = self.kernel.match.region.with_trait(Trait.SCAN)
        return any(name in node.inputs for node in nodes)

    def _cells(self, value: Value, which: int) -> list[torch.Tensor]:
        """The state of each request: before the step, after it, and the marked one."""
        number = self.kernel.match.region.network.block.kept_as(value.name)
        at = self.model.schema.places[self.layer].at(number)
        kind = getattr(torch, value.type.dtype.torch)
        size = value.type.static_elements * kind.itemsize
        shape = tuple(d for d in value.type.shape if isinstance(d, int))
        return [
            self.states[pages[which]][at : at + size].view(kind).view(shape) for pages in self.pages
        ]

    def _latents(self, value: Value) -> list[torch.Tensor]:
        """Views of the cached rows of each request, page by page."""
        at = self.model.schema.places[self.layer].offset_bytes
        kind = getattr(torch, value.type.dtype.torch)
        width = value.type.static_elements
        size = PAGE_TOKENS * width * kind.itemsize
        found = []
        for n in range(len(self.rows)):
            cells = [
                self.cache[p][at : at + size].view(kind).view(-1, width) for p in self.table[n]
            ]
            found.append(cells)
        return found

    def _state(self, value: Value) -> None:
        """Fill what lies there before the step; what a kernel must not read stays NaN."""
        shape = tuple(d for d in value.type.shape if isinstance(d, int))
        kind = getattr(torch, value.type.dtype.torch)
        if self._scans(value.name):
            made = []
            for row, cell in zip(self.rows, self._cells(value, 0), strict=True):
                content = torch.randn(shape, generator=self.random).to(kind)
                if row.before:
                    cell.copy_(content)
                made.append(content.double())
            self.meant[value.name] = DenseState(made)
            return
        reads = any(n.op.has(Trait.LATENT) for n in self.kernel.match.region.nodes)
        made = []
        for row, cells in zip(self.rows, self._latents(value), strict=True):
            length = row.before + row.count
            content = torch.randn(length, *shape, generator=self.random).to(kind)
            stored = length if reads else row.before
            for p in range(length):
                if p < stored and not row.padding:
                    cells[p // PAGE_TOKENS][p % PAGE_TOKENS] = content[p]
            made.append(content.double())
        self.meant[value.name] = DenseRows(made)

    def _argument(self, parameter: Parameter, sizes: Sizes) -> Any:
        region = self.kernel.match.region
        if isinstance(parameter, Operand):
            name = self.kernel.signature[parameter.index]
            if name in self.steps:
                return self.steps[name].tensor
            if name in (SCRATCH, COUNTERS) or region.value(name).role is not Role.STATE:
                return self.given[name].tensor
            kind = getattr(torch, region.value(name).type.dtype.torch)
            return (self.states if self._scans(name) else self.cache).view(kind)
        if isinstance(parameter, Constant):
            return parameter.of(sizes)
        if isinstance(parameter, LayerOffset):
            number = 0
            if parameter.index is not None:
                name = self.kernel.signature[parameter.index]
                number = region.network.block.kept_as(name)
            return self.model.schema.places[self.layer].at(number)
        if isinstance(parameter, BlockTable):
            group = self.model.schema.groups[self.model.schema.places[self.layer].group]
            return self.args.tensor[self.model.args.offset(f"block_table.{group.name}") :]
        assert isinstance(parameter, Pointer) and not isinstance(parameter, Matrix)
        return self.args.tensor if parameter is Pointer.ARGS else self.steps[parameter.value].tensor

    def _compared(self) -> dict[str, float]:
        view = StepView(torch.tensor(self.positions), torch.tensor(self.owners))
        found, marked = self._reference(view, None), None
        if any(r.mark for r in self.rows):
            marked = self._reference(view, [r.mark for r in self.rows])
        errors: dict[str, float] = {}
        region = self.kernel.match.region
        for name, wanted in found.items():
            value = self.block.value[name]
            if value.role is Role.STATE and isinstance(wanted, DenseState):
                errors |= self._states(value, wanted, marked[name] if marked else None)
            elif value.role is Role.STATE:
                errors[name] = self._rows(value, wanted)
            elif name in region.outputs:
                tensor = self.given[name].tensor
                rest = tensor[self.tokens :].float()
                assert bool(torch.isnan(rest).all()), f"{name}: rows behind the step's were written"
                errors[name] = difference(tensor[: self.tokens], wanted)
        for name, zone in {**self.given, "args": self.args, **self.steps}.items():
            assert not zone.damage(), f"{name}: bytes around it were written"
        return errors

    def _reference(self, view: StepView, stops: list[int] | None) -> dict[str, Any]:
        """Every value of the kernel's graph; with `stops` of a step that ends there."""
        kept = [
            stops is None or not stops[max(o, 0)] or p < stops[max(o, 0)]
            for o, p in zip(self.owners, self.positions, strict=True)
        ]
        pick = torch.tensor(kept)
        view = StepView(view.positions[pick], view.request[pick])
        values: dict[str, Any] = {}
        for value in self.block.values:
            if value.name in self.block.producer:
                continue
            if value.role is Role.STEP:
                values[value.name] = view.request
                continue
            meant = self.meant[value.name]
            if isinstance(meant, torch.Tensor):
                meant = meant.double()
                meant = meant[: self.tokens][pick] if value.type.leading else meant
            values[value.name] = meant
        for node in self.block.nodes:
            results = node.op.reference([values[i] for i in node.inputs], view)
            values |= dict(zip(node.outputs, results, strict=True))
        return {o: values[o] for n in self.block.nodes for o in n.outputs}

    def _states(self, value: Value, wanted: DenseState, marked: Any) -> dict[str, float]:
        source = next(n for n in self.block.nodes if value.name in n.outputs)
        state = next(i for i in source.inputs if self.block.value[i].role is Role.STATE)
        place = self.block.value[state]
        errors = {}
        for n, row in enumerate(self.rows):
            if row.padding or not row.count:
                continue
            errors[f"{state} {n}"] = difference(self._cells(place, 1)[n], wanted.values[n])
            if row.mark:
                key = f"{state} {n} marked"
                errors[key] = difference(self._cells(place, 2)[n], marked.values[n])
            elif not row.in_place:
                unread = self._cells(place, 2)[n]
                assert bool(torch.isnan(unread.float()).all()), "a page that nobody asked for"
        return errors

    def _rows(self, value: Value, wanted: DenseRows) -> float:
        source = next(n for n in self.block.nodes if value.name in n.outputs)
        worst = 0.0
        for n, row in enumerate(self.rows):
            if row.padding:
                continue
            cells = self._latents(self.block.value[source.inputs[0]])[n]
            for p in range(row.before, row.before + row.count):
                cell = cells[p // PAGE_TOKENS][p % PAGE_TOKENS]
                worst = max(worst, difference(cell, wanted.rows[n][p]))
        return worst


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest error, relative to the largest number that is wanted."""
    size = max(float(wanted.abs().max()) if wanted.numel() else 0.0, 1e-30)
    error = (found.double() - wanted).abs().max() if wanted.numel() else torch.tensor(0.0)
    return float("inf") if bool(torch.isnan(error)) else float(error) / size


def layer_of(model: Tiny, block: str) -> int:
    """The first layer that is a block of this name."""
    number = model.block(block)
    found = next(p.layer for p in model.graph.sequence if p.block == number)
    assert found is not None
    return found


def region_kernel(
    model: Tiny, block: int, ops: tuple[str, ...], family: str, phase: str, must: bool = True
) -> Any:
    """Exactly these ops as one kernel of a family. Unless it `must`: the family's answer, if that
    is none."""
    network = Network(model.graph.blocks[block])
    names = [n.name for n in network.nodes]
    mask = sum(1 << names.index(op) for op in ops)
    one = next(f for f in catalogue(DEVICE) if f.name == family)
    match = one.match(Region(network, mask), phase)
    if not must and not isinstance(match, Match):
        return match
    assert isinstance(match, Match), match
    return named(match, family)
