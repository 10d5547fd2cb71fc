"""Owns trying attention kernels: layers of any shape, poisoned pages, all against float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from gpu_trials import Tiny, Trial

from kernelgen.codegen.triton.dispatch import gpu_kernel
from kernelgen.core.dtypes import BFLOAT16, DType
from kernelgen.ir.graph import Block, BlockBuilder, Graph, Placement
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.lower.attention import attention
from kernelgen.lower.float8_cache import with_float8_cache
from kernelgen.lower.scope import STREAM, Numerics, Scope, rope_tables
from kernelgen.ops.step import DenseCache
from kernelgen.planner.caches import PAGE_TOKENS
from kernelgen.planner.plan import COUNTERS, SCRATCH, Kernel
from kernelgen.spec.model import AttentionSpec, CacheSpec, LayerSpec
from kernelgen.spec.rope import RopeSpec
from kernelgen.verify.arguments import step_values, step_view
from kernelgen.verify.bounds import Bounded, evaluate_bounded
from kernelgen.verify.compare import compare
from kernelgen.verify.guarded import POISON
from kernelgen.verify.interpreter import interpret
from kernelgen.verify.scenario import Request, Scenario

POSITIONS = 512
_LAYERS = 2
_WEIGHT_ROUNDING = 2.0**-8
"""softmax weights meet bfloat16 values as bfloat16: 2⁻⁹ of each, twice for sums that cancel"""


@dataclass(frozen=True)
class Shape:
    """One attention layer; `scale` is the usual one."""

    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    window: int | None = None
    sinks: bool = False
    norm: bool = True
    rope: int | None = None
    """rotated columns; all of them by default, 0 for none"""
    dtype: DType = field(default=BFLOAT16)
    float8: bool = False
    """of the cache"""

    @property
    def spec(self) -> AttentionSpec:
        """The layer as a spec."""
        turned = self.dim if self.rope is None else self.rope
        rope = RopeSpec(turned, 1e4) if turned else None
        return AttentionSpec(
            self.heads,
            self.kv_heads,
            self.dim,
            self.dim**-0.5,
            rope,
            self.window,
            self.sinks,
            self.norm,
        )


@cache
def layers(shape: Shape) -> Tiny:
    """A model of equal attention layers and nothing else."""
    spec, numerics = shape.spec, Numerics.of(shape.dtype, shape.dtype)
    layer = LayerSpec(attention=spec, mlp=None, norm_eps=1e-6)  # type: ignore[arg-type]
    tables = rope_tables([layer], POSITIONS)
    scope = Scope(BlockBuilder("layer"), numerics, tables)
    out = attention(scope, "attn", scope.stream(64), spec, 1e-6)
    block: Block = scope.builder.build([(STREAM, out)])
    kept = CacheSpec(spec.kv_heads, spec.head_dim, spec.window, numerics.cache)
    places = tuple(Placement(0, i) for i in range(_LAYERS))
    caches = tuple((i, kept) for i in range(_LAYERS))
    graph = Graph("attention", (block,), places, caches, tuple(tables.values()))
    graph = with_float8_cache(graph) if shape.float8 else graph
    return Tiny(f"attention {shape}", graph, 1000, POSITIONS)


def attention_kernel(model: Tiny, phase: str, *, fused: bool = True) -> Kernel:
    """Attention; in decode with all that may join it, unless it shall stand alone."""
    family = "attention_decode" if phase == "decode" else "attention_prefill"
    joined = fused and phase == "decode"
    nodes = model.search(0, phase).network.nodes
    ops = [
        node.name
        for node in nodes
        if node.op.has(Trait.ATTENTION) or (joined and not node.op.has(Trait.MATMUL))
    ]
    kernel = model.kernel(0, ops, family, phase)
    region = kernel.match.region
    besides = (SCRATCH, COUNTERS) if phase == "decode" else ()
    outputs = [node.outputs[0] for node in region.nodes if node.op.has(Trait.ATTENTION)]
    return Kernel("tried", kernel.match, (*region.inputs, *outputs, *besides))


def steps(phase: str, *requests: tuple[int, int] | None) -> Scenario:
    """A step of (history, new) requests; None is a padding row with a token."""
    rows = tuple(
        Request(0, 1, -1) if r is None else Request(r[0], r[1], i ^ 1)
        for i, r in enumerate(requests)
    )
    return Scenario(f"{phase} {requests}", phase, rows, (), ())


@dataclass
class AttentionTrial(Trial):
    """One attention kernel in one step; the pool holds the histories, all else is poison."""

    cache: DenseCache = field(init=False)
    before: Any = field(init=False)
    """the pool before the run"""

    def problems(self) -> list[str]:
        """What is wrong with outputs, cache and memory around; empty when all is right."""
        made = gpu_kernel(self.kernel, self.choice, self.model.layout)
        self._prepare()
        self._fill()
        for one in made.passes:
            sizes = Sizes(self.capacity, self.capacity, 64, self.capacity)
            interpret(one.unit, one.grid(sizes), [self._argument(p) for p in one.parameters])
        return self._compared() + self._damage(made)

    def _fill(self) -> None:
        """Keys and values that the step may read; NaN before a window and in free places."""
        state = next(v.type for v in self.block.values if v.role.value == "state")
        kind, window = getattr(torch, state.dtype.torch), self._window()
        stored = any(n.op.has(Trait.STATE_WRITE) for n in self.kernel.match.region.nodes)
        sides: tuple[list[Any], list[Any]] = ([], [])
        for row, request in enumerate(self.scenario.requests):
            last = request.history if stored else request.length
            first = max(0, request.history - window + 1) if window else 0
            for side, dense in enumerate(sides):
                made = torch.full((request.length, *state.shape), float("nan"), dtype=torch.float64)
                if not request.padding:
                    fresh = torch.randn((max(0, last - first), *state.shape), generator=self.random)
                    made[first:last] = fresh.to(kind).double()
                    for position in range(first, last):
                        self._cell(row, position, side)[:] = made[position].to(kind)
                dense.append(made)
        self.cache = DenseCache(*sides)
        self.before = self.pool.tensor.clone()

    def _window(self) -> int | None:
        return self.model.schema.groups[self.model.schema.places[self.layer].group].window

    def _cell(self, row: int, position: int, side: int) -> Any:
        """`[kv_heads, D]` of the pool: keys (side 0) or values of one token."""
        place = self.model.schema.places[self.layer]
        group = self.model.schema.groups[place.group].name
        state = next(v.type for v in self.block.values if v.role.value == "state")
        page = int(self.tables.entries[group][row, position // PAGE_TOKENS])
        elements = self.pool.tensor.view(getattr(torch, state.dtype.torch))[page]
        start, size = place.offset_bytes // state.dtype.bytes, state.static_elements * PAGE_TOKENS
        part = elements[start + side * size :][:size]
        return part.view(state.shape[0], PAGE_TOKENS, state.row_width)[:, position % PAGE_TOKENS]

    def _compared(self) -> list[str]:
        found = self._reference()
        anchor = next(n for n in self.kernel.match.region.nodes if n.op.has(Trait.ATTENTION))
        out = anchor.outputs[0]
        problems = self._rows(out, self._widened(found[out]))
        written = next((n for n in self.block.nodes if n.op.has(Trait.STATE_WRITE)), None)
        if written is not None:
            problems += self._stored(found[written.outputs[0]])
        if bool((self.pool.tensor != self.before).any()):
            problems.append("bytes of the pool that belong to no new token were written")
        return problems

    def _reference(self) -> Mapping[str, Bounded]:
        values = step_values(self.scenario, self.ids)
        outside: dict[str, Any] = {}
        for value in self.block.values:
            if value.name in self.block.producer:
                continue
            if value.role.value == "state":
                clean = [
                    [t.nan_to_num() for t in side] for side in (self.cache.keys, self.cache.values)
                ]
                outside[value.name] = DenseCache(*clean)
            elif value.role.value == "step":
                outside[value.name] = values[value.name]
            else:
                meant = self.meant[value.name].double()
                rows = self._count(value.name) if value.type.leading else len(meant)
                outside[value.name] = meant[:rows]
        return evaluate_bounded(self.block, outside, step_view(self.scenario, values))

    def _widened(self, want: Bounded) -> Bounded:
        """The bound with the softmax weights rounded as the values are."""
        anchor = next(n for n in self.kernel.match.region.nodes if n.op.has(Trait.ATTENTION))
        if self.block.value[anchor.outputs[0]].type.dtype != BFLOAT16:
            return want
        return Bounded(want.value, want.error + _WEIGHT_ROUNDING * self._largest())

    def _largest(self) -> float:
        return (
            max(
                (float(v.nan_to_num().abs().max()) for v in self.cache.values if len(v)),
                default=0.0,
            )
            + 4.0
        )

    def _stored(self, want: Bounded) -> list[str]:
        """The newest keys and values in their pages; what was right is taken back."""
        problems = []
        for token, (row, position) in enumerate(
            zip(self.scenario.owners, self.scenario.positions, strict=True)
        ):
            for side, name in enumerate(("keys", "values") if row >= 0 else ()):
                exact, error = (getattr(w, name)[row][position] for w in (want.value, want.error))
                cell = self._cell(row, position, side)
                check = compare(name, f"token {token}", cell, Bounded(exact, error))
                if not check.passed:
                    problems.append(f"{name}: {check.error} of {check.bound} {check.text}")
                cell.view(torch.uint8).fill_(POISON)
        return problems
