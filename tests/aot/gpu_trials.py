"""Owns trying a generated GPU kernel: guarded operands, interpreter, every element's bound."""

from __future__ import annotations

import importlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kernelgen.archs
from kernelgen.codegen.cuda.launches import (
    BlockTable,
    GpuKernel,
    LayerOffset,
    Matrix,
    Operand,
    Parameter,
    Pointer,
)
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.manifest import sub_graph
from kernelgen.codegen.step_args import ArgsLayout, args_layout
from kernelgen.codegen.triton.dispatch import gpu_kernel
from kernelgen.codegen.triton.kernels import StepLayout
from kernelgen.core.dtypes import BFLOAT16, FLOAT8, DType
from kernelgen.formats import WeightFormat
from kernelgen.formats.reference import dequantise
from kernelgen.hw import parse_target
from kernelgen.ir.codec import block_from_json
from kernelgen.ir.graph import Block, Graph, Role
from kernelgen.ir.types import Sizes
from kernelgen.lower.float8_cache import SCALES
from kernelgen.ops.registry import op_kinds
from kernelgen.ops.step import DenseCache
from kernelgen.planner.caches import PAGE_TOKENS, CacheSchema, cache_schema
from kernelgen.planner.family import Match
from kernelgen.planner.plan import COUNTERS, SCRATCH, Kernel
from kernelgen.planner.search import BlockSearch
from kernelgen.spec.config import ConfigFile
from kernelgen.verify.arguments import (
    Ids,
    Tables,
    block_tables,
    step_values,
    step_view,
    token_ids,
    write_args,
)
from kernelgen.verify.bounds import Bounded, evaluate_bounded
from kernelgen.verify.built import Group
from kernelgen.verify.compare import compare
from kernelgen.verify.evaluate import table_tensor
from kernelgen.verify.guarded import Guarded
from kernelgen.verify.interpreter import interpret
from kernelgen.verify.packed import pack_rows, random_matrix
from kernelgen.verify.scenario import Scenario

os.environ["TRITON_INTERPRET"] = "1"  # before any test imports Triton
DEVICE = parse_target("sm_90:h200")
_SCRATCH_BYTES = 1 << 22
_MAX_ROWS = 128
_MAX_TOKENS = 640


@dataclass
class Tiny:
    """An architecture's tiny model, and its blocks' kernels on a GPU."""

    name: str
    graph: Graph
    vocab: int
    positions: int
    searches: dict[tuple[int, str], BlockSearch] = field(default_factory=dict)

    @property
    def schema(self) -> CacheSchema:
        """Pages of the model's cache."""
        return cache_schema(self.graph.caches)

    @property
    def args(self) -> ArgsLayout:
        """Small capacities: what a step does not use stays poison."""
        return args_layout(self.schema, _MAX_TOKENS, _MAX_ROWS, self.positions)

    @property
    def layout(self) -> StepLayout:
        """What kernels are told."""
        return StepLayout(self.schema, self.args)

    def block(self, name: str) -> int:
        """Number of the first block whose name starts so."""
        return next(i for i, b in enumerate(self.graph.blocks) if b.name.startswith(name))

    def search(self, block: int, phase: str) -> BlockSearch:
        """All regions of a block."""
        if (block, phase) not in self.searches:
            families = catalogue(DEVICE)
            self.searches[block, phase] = BlockSearch(self.graph.blocks[block], families, phase)
        return self.searches[block, phase]

    def kernel(self, block: int, ops: Sequence[str], family: str, phase: str = "decode") -> Kernel:
        """Exactly these ops as one kernel of a family."""
        search = self.search(block, phase)
        names = [n.name for n in search.network.nodes]
        mask = sum(1 << names.index(op) for op in ops)
        matches, refusal = search.ask(mask)
        match = next((m for m in matches if m.family.name == family), None)
        assert match is not None, refusal.reason
        return named(match, family)

    def matches(self, block: int, family: str, phase: str) -> list[Match]:
        """Every region of a block that the family takes."""
        found = self.search(block, phase).matches
        return [m for ms in found.values() for m in ms if m.family.name == family]


def named(match: Match, family: str) -> Kernel:
    """A kernel with the signature that the planner gives it."""
    region = match.region
    outputs = [o for o in region.outputs if region.value(o).role is not Role.STATE]
    besides = (SCRATCH, COUNTERS) if family == "skinny" else ()
    return Kernel("tried", match, (*region.inputs, *outputs, *besides))


@cache
def all_architectures() -> tuple[str, ...]:
    """Every architecture that GPUs have kernels for, by listing: it is named nowhere else."""
    folder = Path(kernelgen.archs.__file__).parent
    return tuple(sorted(p.parent.name for p in folder.glob("*/golden.plan")))


@cache
def architectures() -> tuple[str, ...]:
    """Those of them that keep tokens alone, in pages of keys and values: no state of a request."""
    return tuple(
        name
        for name in all_architectures()
        if not any(group.per_request for group in tiny(name, BFLOAT16).schema.groups)
    )


def architecture_with(kind: str) -> str:
    """An architecture whose layers have an op of this kind."""
    for name in all_architectures():
        if any(
            n.op.kind == kind for block in tiny(name, BFLOAT16).graph.blocks for n in block.nodes
        ):
            return name
    raise LookupError(f"no architecture has {kind}")


@cache
def tiny(architecture: str, activation: DType) -> Tiny:
    """The architecture's own tiny config, lowered."""
    folder = Path(kernelgen.archs.__file__).parent / architecture
    config = json.loads((folder / "tiny.json").read_text())
    module = importlib.import_module(f"kernelgen.archs.{architecture}")
    spec = module.ARCHITECTURE.read(ConfigFile("tiny.json", config))
    graph = module.ARCHITECTURE.lower(spec, activation)
    return Tiny(architecture, graph, spec.vocab, spec.max_positions)


def words_of(model: Tiny, scenario: Scenario, tables: Tables, ids: Ids) -> torch.Tensor:
    """The step's arguments of a scenario."""
    fields = [
        {"name": f.name, "offset": f.offset, "shape": f.shape, "bits": f.bits}
        for f in model.args.fields
        if not f.name.startswith("block_table.") or tables.entries
    ]
    schema = {"words": model.args.words, "fields": fields}
    return torch.from_numpy(write_args(schema, scenario, tables, ids))


@dataclass
class Trial:
    """One kernel with one tile in one scenario, in a plan of `capacity` token and logit rows."""

    model: Tiny
    kernel: Kernel
    choice: Mapping[str, int]
    scenario: Scenario
    capacity: int
    layer: int = 0
    slack: float = 0.0
    """further error, relative to a row's largest value, of rows rounded before their scale"""

    def problems(self) -> list[str]:
        """What is wrong with the outputs; empty when every element is within its bound."""
        made = gpu_kernel(self.kernel, self.choice, self.model.layout)
        self._prepare()
        for one in made.passes:
            sizes = Sizes(self.capacity, self.capacity, 64, self.capacity)
            interpret(one.unit, one.grid(sizes), [self._argument(p) for p in one.parameters])
        return self.compared() + self._damage(made)

    def _prepare(self) -> None:
        model, scenario = self.model, self.scenario
        key = zlib.crc32(f"{model.name} {self.kernel.match.variant} {scenario.name}".encode())
        self.random, rng = torch.Generator().manual_seed(key), np.random.default_rng(key)
        groups = [Group(g.name, g.window, g.layers) for g in model.schema.groups]
        self.tables: Tables = block_tables(scenario, groups, rng)
        self.ids: Ids = token_ids(scenario, model.vocab, rng)
        words = words_of(model, scenario, self.tables, self.ids)
        self.args = Guarded.of(words)
        self.pool = Guarded((self.tables.pages, model.schema.page_bytes), "uint8")
        self.pool.tensor[0] = 0
        self.block: Block = block_from_json(sub_graph(self.kernel), op_kinds())
        self.meant: dict[str, Any] = {}
        self.given = {name: self._operand(name) for name in self.kernel.signature}
        steps = {
            "positions": scenario.positions,
            "rows": scenario.owners,
            "token_ids": self.ids.meant.tolist(),
        }
        self.steps = {name: self._step(list(values)) for name, values in steps.items()}

    def _step(self, values: list[int]) -> Guarded:
        """A step value of all rows of the plan, −1 for unused ones: what opens a step."""
        padded = values + [-1] * (self.capacity - len(values))
        return Guarded.of(torch.tensor(padded, dtype=torch.int32))

    def _operand(self, name: str) -> Guarded:
        """Random contents of an input, poison of an output."""
        if name == SCRATCH:
            return Guarded((_SCRATCH_BYTES,), "uint8")
        region = self.kernel.match.region
        if name == COUNTERS:
            return Guarded.of(torch.zeros(4096, dtype=torch.int32))
        value = region.value(name)
        if isinstance(value.type.dtype, WeightFormat):
            return self._packed(name, value.type.dtype, *value.type.shape)
        kind = getattr(torch, value.type.dtype.torch)
        sizes = Sizes(self.capacity, self.capacity, 64)
        shape = tuple(sizes.of(d) for d in value.type.shape)
        if value.role in (Role.STEP, Role.STATE):
            return Guarded((1,), "int32")
        if name in region.outputs:
            return Guarded(shape, value.type.dtype.name)
        table = next((t for t in self.model.graph.tables if t.name == name), None)
        if table is not None and value.role is Role.TABLE:
            made = table_tensor(table, kind)
        elif shape[-1] == 1 or name.endswith(SCALES):
            made = torch.empty(shape).uniform_(0.2, 2.0, generator=self.random).to(kind)
        else:
            scale = shape[-1] ** -0.5 if value.role is Role.WEIGHT and len(shape) > 1 else 1.0
            made = (torch.randn(shape, generator=self.random) * scale).to(kind)
        self.meant[name] = made
        if value.type.leading is not None:  # rows beyond the step's are poison
            made = made.clone()
            made[self._count(name) :] = float("nan")
        return Guarded.of(made)

    def _packed(self, name: str, kind: WeightFormat, n: int, k: int) -> Guarded:
        """A matrix in a format, as rows."""
        seed = int(torch.randint(1 << 30, (1,), generator=self.random))
        parts = random_matrix(kind, n, k, np.random.default_rng(seed))
        self.meant[name] = torch.from_numpy(dequantise(kind, parts))
        return Guarded.of(torch.from_numpy(pack_rows(kind, parts)))

    def _count(self, name: str) -> int:
        """Rows of a value that the step uses."""
        leading = self.kernel.match.region.value(name).type.leading
        return self.scenario.tokens if str(leading) == "T" else len(self.scenario.logit_tokens)

    def _argument(self, parameter: Parameter) -> Any:
        if isinstance(parameter, Operand):
            name = self.kernel.signature[parameter.index]
            if name in self.steps:
                return self.steps[name].tensor
            if name not in (SCRATCH, COUNTERS):
                role = self.kernel.match.region.value(name).role
                if role is Role.STATE:
                    kind = self.kernel.match.region.value(name).type.dtype
                    name = kind.numpy if kind == FLOAT8 else kind.torch  # kernels read bytes
                    return self.pool.tensor.view(getattr(torch, name))
                if role is Role.STEP:
                    return self.args.tensor
            return self.given[name].tensor
        if isinstance(parameter, Matrix):
            sizes = Sizes(self.capacity, self.capacity, 64, self.capacity)
            flat = self.given[self.kernel.signature[parameter.index]].tensor.flatten()
            return flat.view(parameter.rows(sizes), parameter.columns)
        if isinstance(parameter, LayerOffset):
            return self.model.schema.places[self.layer].offset_bytes
        if isinstance(parameter, BlockTable):
            group = self.model.schema.groups[self.model.schema.places[self.layer].group]
            return self.args.tensor[self.model.args.offset(f"block_table.{group.name}") :]
        assert isinstance(parameter, Pointer)
        return self.args.tensor if parameter is Pointer.ARGS else self.steps[parameter.value].tensor

    def compared(self) -> list[str]:
        """Outputs that lie outside their bounds, once the kernel has run."""
        steps = step_values(self.scenario, self.ids)
        view = step_view(self.scenario, steps)
        outside: dict[str, Any] = {}
        for value in self.block.values:
            if value.name in self.block.producer:
                continue
            if value.role is Role.STATE:
                lengths = [r.length for r in self.scenario.requests]
                empty = [torch.zeros(n, *value.type.shape, dtype=torch.float64) for n in lengths]  # type: ignore[arg-type]
                outside[value.name] = DenseCache(empty, [e.clone() for e in empty])
            elif value.role is Role.STEP:
                outside[value.name] = steps[value.name]
            else:
                meant = self.meant[value.name].double()
                outside[value.name] = (
                    meant[: self._count(value.name)] if value.type.leading else meant
                )
        found = evaluate_bounded(self.block, outside, view)
        problems = []
        for out in self.kernel.match.region.outputs:
            if isinstance(found[out].value, DenseCache):
                problems += self._cache(out, found[out])
            else:
                problems += self._rows(out, found[out])
        return problems

    def _rows(self, out: str, want: Bounded) -> list[str]:
        tensor, count = self.given[out].tensor, self._count(out)
        if self.slack:
            size = want.value.abs().amax(-1, keepdim=True)
            want = Bounded(want.value, want.error + self.slack * size)
        check = compare(out, self.scenario.name, tensor[:count], want)
        problems = (
            [] if check.passed else [f"{out}: error {check.error} of {check.bound} {check.detail}"]
        )
        rest = tensor[count:]
        if not bool(torch.isnan(rest.float()).all()):
            problems.append(f"{out}: rows beyond the {count} of the step were written")
        return problems

    def _cache(self, out: str, want: Bounded) -> list[str]:
        """Stored rows within their bounds, and not one other byte of the pool changed."""
        place = self.model.schema.places[self.layer]
        group = self.model.schema.groups[place.group]
        state = self.kernel.match.region.value(out).type
        kind = getattr(torch, state.dtype.torch)
        heads, width = state.shape[0], state.row_width
        pool = self.pool.tensor.clone()
        elements, start = pool.view(kind), place.offset_bytes // state.dtype.bytes
        problems = []
        for token, (row, position) in enumerate(
            zip(self.scenario.owners, self.scenario.positions, strict=True)
        ):
            if row < 0:
                continue
            page = int(self.tables.entries[group.name][row, position // PAGE_TOKENS])
            cells = elements[page, start : start + 2 * heads * PAGE_TOKENS * width]  # type: ignore[operator]
            cells = cells.view(2, heads, PAGE_TOKENS, width)[:, :, position % PAGE_TOKENS]  # type: ignore[call-overload]
            for side, name in ((0, "keys"), (1, "values")):
                exact = getattr(want.value, name)[row][position]
                error = getattr(want.error, name)[row][position]
                check = compare(name, f"token {token}", cells[side], Bounded(exact, error))
                if not check.passed:
                    problems.append(f"{name}: {check.error} of {check.bound} {check.detail}")
            cells.fill_(float("nan"))
        bits = {2: torch.int16, 4: torch.int32}[state.dtype.bytes]
        nan = ~torch.isnan(elements.float())
        nan[0] = elements.view(bits)[0] != 0
        if bool(nan.any()):
            problems.append("bytes of the pool that belong to no token of the step were written")
        return problems[:3]

    def _damage(self, made: GpuKernel) -> list[str]:
        zones = {**self.given, "args": self.args, "pool": self.pool, **self.steps}
        problems = [f"{n}: {g.damage()} bytes around it" for n, g in zones.items() if g.damage()]
        if COUNTERS in self.given and bool(self.given[COUNTERS].tensor.any()):
            problems.append("counters are not zero again")
        return problems
