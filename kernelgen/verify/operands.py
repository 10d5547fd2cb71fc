"""Owns the random operands of a kernel: weights in their layouts, activations, a filled cache."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernelgen.core.dtypes import dtype as dtype_named
from kernelgen.formats import WeightFormat, element_type
from kernelgen.ir.graph import Role
from kernelgen.lower.float8_cache import SCALES
from kernelgen.ops.step import DenseCache
from kernelgen.verify.arguments import Ids, Tables, block_tables, token_ids
from kernelgen.verify.built import Built, BuiltKernel, Operand
from kernelgen.verify.cache_pool import CachePlace, dense_cache, filled_pool
from kernelgen.verify.chosen_experts import chosen_experts
from kernelgen.verify.evaluate import table_tensor
from kernelgen.verify.layouts import PagePart, laid_out
from kernelgen.verify.packed import random_packed
from kernelgen.verify.place import Buffer, Place
from kernelgen.verify.scenario import Scenario
from kernelgen.verify.tensors import Generator, Tensor


@dataclass(frozen=True)
class Weights:
    """A kernel's parameters: as they are meant (float64) and as the kernel is given them."""

    meant: Mapping[str, Any]
    given: Mapping[str, Buffer]


@dataclass(frozen=True)
class Given:
    """Everything else that a kernel is handed in one scenario."""

    scenario: Scenario
    tables: Tables
    ids: Ids
    inputs: Mapping[str, Any]
    """activations by name, the rows of the scenario's step"""
    pool: Any
    """`[pages, page_bytes]` before the run"""
    cache: DenseCache | None
    """what the pool holds for the kernel's layer"""

    def only(self, kernel: BuiltKernel, token: int, logit_row: int) -> Given:
        """The same request's token in a step of its own, on the same pages.

        Rows of logits are those of `logit_row`.
        """
        cut = {"T": slice(token, token + 1), "B": slice(logit_row, logit_row + 1)}
        leading = {o.name: o.leading for o in kernel.operands}
        ids = Ids(self.ids.given[cut["T"]], self.ids.meant[cut["T"]], self.ids.last_sampled)
        row, cache = self.scenario.owners[token], self.cache
        if cache is not None:
            cache = DenseCache([cache.keys[row]], [cache.values[row]])
        return replace(
            self,
            scenario=self.scenario.alone(token),
            tables=self.tables.only(row),
            cache=cache,
            ids=ids,
            inputs={name: value[cut[leading[name]]] for name, value in self.inputs.items()},
        )


def random_weights(built: Built, kernel: BuiltKernel, where: Place) -> Weights:
    """One set for all scenarios; rotary tables are the model's own."""
    import torch

    meant: dict[str, Any] = {}
    given: dict[str, Buffer] = {}
    made = _generator(kernel.name, "weights")
    for operand in kernel.operands:
        if operand.role != "weight":
            continue
        kind = element_type(operand.dtype)
        if isinstance(kind, WeightFormat):
            seed = zlib.crc32(f"{kernel.name} {operand.name}".encode())
            shape = operand.sizes(0, 0)
            value, packed = random_packed(kind, shape, operand.layout, np.random.default_rng(seed))
            meant[operand.name] = torch.from_numpy(value)
            given[operand.name] = where.copy(torch.from_numpy(packed))
        else:
            plain = _weight(built, operand, made)
            meant[operand.name] = plain.double()
            given[operand.name] = where.copy(laid_out(plain, operand.layout))
    return Weights(meant, given)


def random_operands(
    built: Built, kernel: BuiltKernel, place: CachePlace | None, scenario: Scenario
) -> Given:
    """Fresh operands for a scenario; equal calls give equal numbers."""
    import torch

    made = _generator(kernel.name, scenario.name)
    rng = np.random.default_rng(made.initial_seed())
    tables = block_tables(scenario, built.groups, rng)
    ids = token_ids(scenario, built.manifest["model"]["vocab"], rng)
    inputs = {
        o.name: _activations(kernel, o, scenario, made)
        for o in kernel.operands
        if o.role == "input"
    }
    shape = (tables.pages, built.manifest["cache"]["page_bytes"])
    pool, cache = torch.zeros(shape, dtype=torch.uint8), None
    if place is not None:
        new = kernel.written_state is None
        cache = dense_cache(scenario, place, new=new, generator=made)
        filled_pool(pool, scenario, place, tables, cache)
    return Given(scenario, tables, ids, inputs, pool, cache)


def cache_place(built: Built, kernel: BuiltKernel, layer: int, where: Place) -> CachePlace:
    """The layer's group and its part of a page; the kernel's own state says heads and dtype."""
    state = next(v.type for v in kernel.block.values if v.role is Role.STATE)
    kv_heads, head_dim = (d for d in state.shape if isinstance(d, int))
    group = next(g for g in built.groups if layer in g.layers)
    part = PagePart(kv_heads, head_dim, state.dtype, 0, where.promises.cache_by_token)
    offset = group.layers.index(layer) * part.stride
    return CachePlace(layer, group, replace(part, offset=offset))


def _generator(*names: str) -> Generator:
    """Random numbers that depend on the names alone."""
    import torch

    return torch.Generator().manual_seed(zlib.crc32(" ".join(names).encode()))


def _weight(built: Built, operand: Operand, made: Generator) -> Tensor:
    """Matrices keep the size of what they multiply; vectors lie around 0.75."""
    import torch

    kind = getattr(torch, dtype_named(operand.dtype).torch)
    plain: Tensor
    if operand.name in built.tables:
        plain = table_tensor(built.tables[operand.name], kind)
        return plain
    shape = operand.sizes(0, 0)
    random = torch.randn(shape, generator=made)
    plain = random / shape[-1] ** 0.5 if len(shape) > 1 else 0.75 + 0.5 * random
    if operand.name.endswith(SCALES):
        plain = plain.abs() + 0.25
    return plain.to(kind)


def _activations(
    kernel: BuiltKernel, operand: Operand, scenario: Scenario, made: Generator
) -> Tensor:
    """Normal numbers, rows of different size; a number a row (a statistic) is positive. Whole
    numbers are chosen experts."""
    import torch

    shape = operand.sizes(scenario.tokens, len(scenario.logit_tokens))
    kind = getattr(torch, dtype_named(operand.dtype).torch)
    if kind == torch.int32:
        return chosen_experts(kernel.block, operand.name, shape, made)
    if shape[-1] == 1:
        return torch.empty(shape).uniform_(0.2, 2.0, generator=made).to(kind)
    size = torch.tensor([0.25, 1.0, 4.0]).repeat(shape[0] // 3 + 1)[: shape[0]]
    rows = size.view(-1, *[1] * (len(shape) - 1))
    return (torch.randn(shape, generator=made) * rows).to(kind)
