"""Owns one kernel on one scenario: random operands, the reference, and runs of the kernel itself."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelgen.core.dtypes import dtype as dtype_named
from kernelgen.ir.graph import Role
from kernelgen.ops.step import DenseCache, StepView
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
from kernelgen.verify.built import Built, BuiltKernel, Operand
from kernelgen.verify.cache_pool import CachePlace, dense_cache, filled_pool
from kernelgen.verify.evaluate import table_tensor
from kernelgen.verify.guarded import Guarded
from kernelgen.verify.layouts import PagePart, laid_out
from kernelgen.verify.library import KernelLibrary
from kernelgen.verify.scenario import Scenario

if TYPE_CHECKING:
    from torch import Generator, Tensor

_UNSAMPLED = -7
"""fills integer outputs: unlike −1, nothing that a kernel writes"""


@dataclass(frozen=True)
class Weights:
    """A kernel's parameters: as they are meant (float64) and as the kernel is given them."""

    meant: Mapping[str, Any]
    given: Mapping[str, Guarded]


@dataclass
class Given:
    """Everything that a kernel is handed in one scenario."""

    scenario: Scenario
    tables: Tables
    ids: Ids
    inputs: dict[str, Any]
    pool: Any
    """`[pages, page_bytes]` before the run"""
    cache: DenseCache | None


@dataclass
class Ran:
    """What a run has left: outputs by name, the pool, `last_sampled`, and bytes damaged around."""

    outputs: dict[str, Any]
    pool: Any
    last_sampled: Any
    damage: list[str] = field(default_factory=list)


def generator(*names: str) -> Generator:
    """Random numbers that depend on the names alone."""
    import torch

    return torch.Generator().manual_seed(zlib.crc32(" ".join(names).encode()))


class Trial:
    """Tries one kernel of a build for one layer."""

    def __init__(
        self, built: Built, kernel: BuiltKernel, layer: int | None, library: KernelLibrary
    ) -> None:
        self.built, self.kernel, self.library = built, kernel, library
        self.place = None if layer is None else _place(built, kernel, layer)
        self.weights = self._weights()

    def given(self, scenario: Scenario) -> Given:
        """Fresh random operands for a scenario."""
        made = generator(self.kernel.name, scenario.name)
        rng = np.random.default_rng(made.initial_seed())
        tables = block_tables(scenario, self.built.groups, rng)
        ids = token_ids(scenario, self.built.manifest["model"]["vocab"], rng)
        inputs = {
            o.name: _activations(o, scenario, made)
            for o in self.kernel.operands
            if o.role == "input"
        }
        import torch

        pool = torch.empty((tables.pages, self.built.manifest["cache"]["page_bytes"]),
                           dtype=torch.uint8)  # fmt: skip
        pool.zero_()
        cache = None
        if self.place is not None:
            new = self.kernel.written_state is None
            cache = dense_cache(scenario, self.place, new=new, generator=made)
            filled_pool(pool, scenario, self.place, tables, cache)
        return Given(scenario, tables, ids, inputs, pool, cache)

    def reference(self, given: Given) -> tuple[dict[str, Bounded], StepView]:
        """Every value of the kernel's sub-graph with its bound, and the step as references see it."""
        steps = step_values(given.scenario, given.ids)
        view = step_view(given.scenario, steps)
        outside: dict[str, Any] = {}
        for value in self.kernel.block.values:
            if value.name in self.kernel.block.producer:
                continue
            if value.role is Role.STATE:
                outside[value.name] = _double(given.cache)
            elif value.role is Role.STEP:
                outside[value.name] = steps[value.name]
            elif value.name in self.weights.meant:
                outside[value.name] = self.weights.meant[value.name]
            else:
                outside[value.name] = given.inputs[value.name].double()
        return evaluate_bounded(self.kernel.block, outside, view), view

    def run(self, given: Given, threads: int) -> Ran:
        """One run on guarded copies; the inputs are checked to be as they were."""
        import torch

        scenario = given.scenario
        words = write_args(self.built.manifest["args"], scenario, given.tables, given.ids)
        buffers = {"args": Guarded.of(torch.from_numpy(words)), "pool": Guarded.of(given.pool),
                   "last_sampled": Guarded.of(torch.from_numpy(given.ids.last_sampled))}  # fmt: skip
        before = dict(given.inputs)
        operands = [self._operand(o, given, buffers) for o in self.kernel.operands]
        self._bind(buffers, len(scenario.logit_tokens))
        self.library.set_threads(threads)
        self.library.run(self.kernel.name, scenario.phase, buffers["args"].tensor, operands)
        damage = [f"{name}: {g.damage()} bytes around it" for name, g in buffers.items()
                  if g.damage()]  # fmt: skip
        damage += [f"{name}: {g.damage()} bytes around it" for name, g in
                   self.weights.given.items() if g.damage()]  # fmt: skip
        before["args"] = torch.from_numpy(words)
        damage += [f"{name} was changed" for name, kept in before.items()
                   if not _equal(buffers[name].tensor, kept)]  # fmt: skip
        outputs = {o.name: buffers[o.name].tensor for o in self.kernel.outputs}
        return Ran(outputs, buffers["pool"].tensor, buffers["last_sampled"].tensor, damage)

    def alone(self, given: Given, token: int, logit_row: int) -> Given:
        """The same request's token in a step of its own, on the same pages.

        Rows of logits are those of `logit_row`.
        """
        scenario = given.scenario.alone(token)
        row = given.scenario.owners[token]
        cut = {"T": slice(token, token + 1), "B": slice(logit_row, logit_row + 1)}
        leading = {o.name: o.leading for o in self.kernel.operands}
        inputs = {name: value[cut[leading[name]]] for name, value in given.inputs.items()}
        ids = Ids(given.ids.given[cut["T"]], given.ids.meant[cut["T"]], given.ids.last_sampled)
        return replace(given, scenario=scenario, tables=given.tables.only(row), ids=ids,
                       inputs=inputs)  # fmt: skip

    def _weights(self) -> Weights:
        meant: dict[str, Any] = {}
        given: dict[str, Guarded] = {}
        made = generator(self.kernel.name, "weights")
        for operand in self.kernel.operands:
            if operand.role != "weight":
                continue
            plain = self._weight(operand, made)
            meant[operand.name] = plain.double()
            given[operand.name] = Guarded.of(laid_out(plain, operand.layout))
        return Weights(meant, given)

    def _weight(self, operand: Operand, made: Generator) -> Tensor:
        import torch

        kind = getattr(torch, operand.dtype)
        if operand.name in self.built.tables:
            return table_tensor(self.built.tables[operand.name], kind)
        shape = operand.sizes(0, 0)
        random = torch.randn(shape, generator=made)
        matrix = len(shape) > 1
        return (random / shape[-1] ** 0.5 if matrix else 0.75 + 0.5 * random).to(kind)

    def _operand(self, o: Operand, given: Given, buffers: dict[str, Guarded]) -> Any:
        scenario = given.scenario
        if o.role == "step":
            return self.library.step_value(o.name)
        if o.role == "cache":
            assert self.place is not None, "a kernel with a cache is tried for a layer"
            return self.library.layer(self.built.layers.index(self.place.layer))
        if o.role == "weight":
            return self.weights.given[o.name].tensor
        if o.role == "input":
            buffers[o.name] = Guarded.of(given.inputs[o.name])
        elif o.role == "scratch":
            size = self.built.workspace_bytes(scenario.phase, scenario.tokens)
            buffers[o.name] = Guarded((size,), "uint8")
        else:
            shape = o.sizes(scenario.tokens, len(scenario.logit_tokens))
            buffers[o.name] = Guarded(shape, o.dtype)
            if not buffers[o.name].tensor.is_floating_point():
                buffers[o.name].tensor.fill_(_UNSAMPLED)
        return buffers[o.name].tensor

    def _bind(self, buffers: Mapping[str, Guarded], logit_rows: int) -> None:
        """What every step checks counts against; only the cache and last_sampled are really used."""
        import torch

        vocab = self.built.manifest["model"]["vocab"]
        self.library.bind("cache", buffers["pool"].tensor)
        self.library.bind("last_sampled", buffers["last_sampled"].tensor)
        self.library.bind("logits", torch.empty(logit_rows, vocab))
        self.library.bind("sampled", torch.empty(logit_rows, dtype=torch.int32))


def _place(built: Built, kernel: BuiltKernel, layer: int) -> CachePlace:
    """The layer's group and its part of a page; the kernel's own state says heads and dtype."""
    state = next(v.type for v in kernel.block.values if v.role is Role.STATE)
    kv_heads, head_dim = (d for d in state.shape if isinstance(d, int))
    group = next(g for g in built.groups if layer in g.layers)
    part = PagePart(kv_heads, head_dim, state.dtype, 0)
    offset = group.layers.index(layer) * part.stride
    return CachePlace(layer, group, replace(part, offset=offset))


def _activations(operand: Operand, scenario: Scenario, made: Generator) -> Tensor:
    """Normal numbers, rows of different size; a number a row (a statistic) is positive."""
    import torch

    shape = operand.sizes(scenario.tokens, len(scenario.logit_tokens))
    kind = getattr(torch, dtype_named(operand.dtype).torch)
    if shape[-1] == 1:
        return torch.empty(shape).uniform_(0.2, 2.0, generator=made).to(kind)
    size = torch.tensor([0.25, 1.0, 4.0]).repeat(shape[0] // 3 + 1)[: shape[0]]
    rows = size.view(-1, *[1] * (len(shape) - 1))
    return (torch.randn(shape, generator=made) * rows).to(kind)


def _double(cache: DenseCache | None) -> DenseCache:
    assert cache is not None, "a kernel with a cache is tried for a layer"
    return DenseCache([k.double() for k in cache.keys], [v.double() for v in cache.values])


def _equal(a: Any, b: Any) -> bool:
    import torch

    return bool(torch.equal(a.view(torch.uint8), b.contiguous().view(torch.uint8)))
