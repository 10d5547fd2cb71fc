"""Owns running a graph by the reference meaning of its ops, in any precision, without kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelgen.core.dtypes import BFLOAT16
from kernelgen.core.errors import UsageError
from kernelgen.ir.graph import Block, Graph, Role, Table, Value
from kernelgen.ops.step import DenseCache, DenseRows, DenseState, Kept, StepView
from kernelgen.spec.model import CacheSpec, KeptSpec, StateSpec


@dataclass(frozen=True)
class Chunk:
    """Consecutive new tokens of one request: what it contributes to a step."""

    request: int
    start: int
    """position of the first id"""
    ids: Sequence[int]


@dataclass(frozen=True)
class Feed:
    """The step values by name (int64 tensors) and the view that references take."""

    values: Mapping[str, Any]
    view: StepView


def feed(chunks: Sequence[Chunk], *, every_logit: bool = False) -> Feed:
    """One greedy step; logits of each chunk's last token, or of every token."""
    import torch

    ids = [i for c in chunks for i in c.ids]
    positions = [c.start + n for c in chunks for n in range(len(c.ids))]
    rows = [c.request for c in chunks for _ in c.ids]
    ends = [sum(len(c.ids) for c in chunks[: i + 1]) - 1 for i in range(len(chunks))]
    logit_tokens = list(range(len(ids))) if every_logit else ends
    count = len(logit_tokens)
    lists = {
        "token_ids": ids,
        "positions": positions,
        "rows": rows,
        "logit_tokens": logit_tokens,
        "sampling": list(range(count)),
    }
    values = {name: torch.tensor(items, dtype=torch.int64) for name, items in lists.items()}
    view = StepView(
        positions=values["positions"],
        request=values["rows"],
        temperature=[0.0] * count,
        top_k=[0] * count,
        top_p=[1.0] * count,
        seed=[0] * count,
        position=[positions[t] + 1 for t in logit_tokens],
    )
    return Feed(values, view)


def evaluate_block(
    block: Block, outside: Mapping[str, Any], view: StepView, *, rounded: bool = False
) -> dict[str, Any]:
    """Every value of the block by name; `outside` holds those that no node computes.

    `rounded`: a result of bfloat16 type is rounded where its op ends, as every kernel does.
    """
    values = {v.name: outside[v.name] for v in block.values if v.name not in block.producer}
    for node in block.nodes:
        outputs = node.op.reference([values[name] for name in node.inputs], view)
        for name, value in zip(node.outputs, outputs, strict=True):
            values[name] = _stored(value, block.value[name]) if rounded else value
    return values


def _stored(value: Any, what: Value) -> Any:
    """A tensor as its own type holds it, in the precision that it came in."""
    import torch

    if what.type.dtype != BFLOAT16 or not isinstance(value, torch.Tensor):
        return value
    return value.float().to(torch.bfloat16).to(value.dtype)


def table_tensor(table: Table, dtype: Any) -> Any:
    """cos and sin of every position, `[positions, 2, frequencies]`, computed in float64."""
    import torch

    frequencies = torch.tensor(table.inv_freq, dtype=torch.float64)
    angles = torch.arange(table.positions, dtype=torch.float64)[:, None] * frequencies
    return (torch.stack([angles.cos(), angles.sin()], dim=1) * table.scale).to(dtype)


def _empty(spec: KeptSpec, requests: int, capacity: int, dtype: Any) -> Kept:
    """What `requests` requests keep before their first token."""
    import torch

    def zeros(*shape: int) -> list[Any]:
        return [torch.zeros(shape, dtype=dtype) for _ in range(requests)]

    if isinstance(spec, StateSpec):
        return DenseState(zeros(*spec.shape))
    if isinstance(spec, CacheSpec):
        return DenseCache(zeros(capacity, *spec.shape), zeros(capacity, *spec.shape))
    return DenseRows(zeros(capacity, *spec.shape))


class Evaluator:
    """A model by references: keeps dense caches of `requests` requests between steps.

    `parameters` maps full names to tensors of any float dtype; each is converted to `dtype` where
    it is used, so that memory stays near that of the checkpoint. `rounded`: parameters and results
    of bfloat16 type are rounded to it, so that only sums are exact.
    """

    def __init__(
        self,
        graph: Graph,
        parameters: Mapping[str, Any],
        *,
        dtype: Any,
        requests: int = 1,
        capacity: int,
        rounded: bool = False,
    ) -> None:
        self.graph = graph
        self.parameters = parameters
        self.dtype = dtype
        self.capacity = capacity
        self.rounded = rounded
        self._tables = {t.name: table_tensor(t, dtype) for t in graph.tables}
        self._blocks = {
            p.layer: graph.blocks[p.block] for p in graph.sequence if p.layer is not None
        }
        self._keeper = {
            layer: layer if c.kv_share_with is None else c.kv_share_with
            for layer, c in graph.caches
        }
        self.caches: dict[tuple[int, int], Kept] = {}
        """by layer and the number of the state among those of the layer"""
        for layer, spec in graph.caches:
            if spec.kv_share_with is not None:
                continue
            number = sum(1 for known in self.caches if known[0] == layer)
            self.caches[layer, number] = _empty(spec, requests, capacity, dtype)

    def step(self, step: Feed) -> dict[str, Any]:
        """Runs one step; the streams at its end: `x`, `logits [B, vocabulary]`, `sampled [B]`."""
        last = int(step.values["positions"].max()) if len(step.values["positions"]) else 0
        if last >= self.capacity:
            raise UsageError(f"position {last}", allowed=f"below the capacity {self.capacity}")
        streams: dict[str, Any] = {}
        for placement in self.graph.sequence:
            block, layer = self.graph.blocks[placement.block], placement.layer
            outside = {
                v.name: self._outside(v, layer, streams, step)
                for v in block.values
                if v.name not in block.producer
            }
            values = evaluate_block(block, outside, step.view, rounded=self.rounded)
            for node in block.nodes:
                for out in node.outputs:
                    if layer is not None and block.value[out].role is Role.STATE:
                        self.caches[layer, block.kept_as(out)] = values[out]
            streams.update({stream: values[name] for stream, name in block.results})
        return streams

    def _outside(self, value: Value, layer: int | None, streams: dict[str, Any], step: Feed) -> Any:
        if value.role is Role.STREAM:
            return streams[value.name]
        if value.role is Role.STEP:
            return step.values[value.name]
        if value.role is Role.TABLE:
            return self._tables[value.name]
        if value.role is Role.STATE:
            assert layer is not None
            return self.caches[self._keeper[layer], self._blocks[layer].kept_as(value.name)]
        weight = self.parameters[self.graph.weight_name(value, layer)].to(self.dtype)
        return _stored(weight, value) if self.rounded else weight
