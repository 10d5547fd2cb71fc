"""Owns the baseline of all products: the model's matrices as cuBLAS multiplies them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from kernelgen.bench.built import Built
from kernelgen.bench.gpu_time import graph_us
from kernelgen.bench.kernels import MeasuredLaunch
from kernelgen.bench.series import Series
from kernelgen.report.plan_data import PlanView

ROTATED = 4
"""copies of a matrix take at least this many times the L2 cache, so that none is found in it"""


@dataclass(frozen=True)
class Matrix:
    """One product of a step, `count` times: matrices with one input stacked, as engines do.

    `ops` are the ops that it does; the layers of a group may differ in more than that.
    """

    name: str
    outputs: int
    inputs: int
    ops: tuple[str, ...]
    layers: tuple[int | None, ...]

    @property
    def count(self) -> int:
        """Times in a step."""
        return len(self.layers)


@dataclass(frozen=True)
class MatrixFigures:
    """One product, µs: by cuBLAS, and all kernels of ours that do it, with all else they do."""

    name: str
    outputs: int
    inputs: int
    count: int
    cublas_us: Series
    ours_us: float | None


@dataclass(frozen=True)
class Products:
    """All products of a step: each alone, and all of them in order in one captured graph."""

    each: tuple[MatrixFigures, ...]
    chain_us: Series
    ours_us: float | None


def matrices(built: Built, plan: PlanView) -> tuple[Matrix, ...]:
    """The products of a step in order of first use; those that a rule calls horizontal stacked."""
    leader = _leaders(plan)
    groups: dict[tuple[int | None, str], list[str]] = {}
    for kernel in plan.kernels:
        for op in kernel.ops:
            if _weight(built, kernel.layer, op) and kernel.flops:
                ops = groups.setdefault((kernel.layer, leader.get(op, op)), [])
                ops.extend([op] if op not in ops else [])
    found: dict[tuple[tuple[str, ...], int, int], list[int | None]] = {}
    for (layer, _), ops in groups.items():
        shapes = [built.matrices[_weight(built, layer, op)] for op in ops]
        key = (tuple(ops), sum(rows for rows, _ in shapes), shapes[0][1])
        found.setdefault(key, []).append(layer)
    return tuple(
        Matrix(" + ".join(ops), outputs, inputs, ops, tuple(layers))
        for (ops, outputs, inputs), layers in found.items()
    )


def measure_products(
    built: Built, found: Sequence[Matrix], launches: Sequence[MeasuredLaunch], batch: int
) -> Products:
    """Times of cuBLAS (`torch.mm`) on random matrices, weights rotated."""
    import torch

    dtype, place = getattr(torch, built.dtype), torch.device("cuda")
    cache = torch.cuda.get_device_properties(place).L2_cache_size
    works = [_Product(matrix, batch, dtype, place, cache) for matrix in found]
    each = [
        MatrixFigures(
            matrix.name,
            matrix.outputs,
            matrix.inputs,
            matrix.count,
            Series.of(graph_us(work.run_alone).values, 1 / work.alone),
            ours(matrix, launches),
        )
        for matrix, work in zip(found, works, strict=True)
    ]
    chain = graph_us(lambda: _chain(found, works))
    return Products(tuple(each), chain, ours_in_all(found, launches))


def ours(matrix: Matrix, launches: Sequence[MeasuredLaunch]) -> float | None:
    """Mean advance, over the layers of `matrix`, of the kernels that do one of its ops."""
    advances = [
        launch.time.advance_us
        for launch in launches
        if launch.planned
        and launch.planned.layer in matrix.layers
        and not set(matrix.ops).isdisjoint(launch.planned.ops)
    ]
    return round(sum(advances) / matrix.count, 3) if advances else None


def ours_in_all(found: Sequence[Matrix], launches: Sequence[MeasuredLaunch]) -> float | None:
    """Sum of the advances of all kernels that do a product, each counted once."""
    ops = {op for matrix in found for op in matrix.ops}
    advances = [
        launch.time.advance_us
        for launch in launches
        if launch.planned and not ops.isdisjoint(launch.planned.ops) and launch.planned.flops
    ]
    return round(sum(advances), 1) if advances else None


class _Product:
    """A matrix in enough copies, one input, and outputs."""

    def __init__(self, matrix: Matrix, batch: int, dtype: Any, place: Any, cache: int) -> None:
        import torch

        size = matrix.outputs * matrix.inputs * dtype.itemsize
        copies = max(1, -(-ROTATED * cache // size))
        self.x = torch.randn(batch, matrix.inputs, dtype=dtype, device=place)
        self.out = torch.empty(batch, matrix.outputs, dtype=dtype, device=place)
        self._weights = [
            torch.empty(matrix.outputs, matrix.inputs, dtype=dtype, device=place).uniform_(
                -0.1, 0.1
            )
            for _ in range(copies)
        ]
        self.alone = max(copies, 8)
        """products of one `run_alone`"""
        self._turns = cycle(self._weights)

    def run(self, times: int = 1) -> None:
        """The next copies, in turns."""
        import torch

        for weight in islice(self._turns, times):
            torch.mm(self.x, weight.t(), out=self.out)

    def run_alone(self) -> None:
        """Every copy at least once."""
        self.run(self.alone)


def _chain(found: Sequence[Matrix], works: Sequence[_Product]) -> None:
    """The products of each layer in order, then those outside of layers."""
    layers: Iterable[int | None] = sorted({i for m in found for i in m.layers if i is not None})
    for layer in (*layers, None):
        for matrix, work in zip(found, works, strict=True):
            work.run(matrix.layers.count(layer))


def _leaders(plan: PlanView) -> dict[str, str]:
    """The first op of each row of ops that take their columns from one input."""
    leader: dict[str, str] = {}
    for fusion in plan.fusions:
        if fusion.rule == "horizontal":
            leader[fusion.b] = leader.get(fusion.a, fusion.a)
    return leader


def _weight(built: Built, layer: int | None, op: str) -> str:
    """Name of the matrix that an op multiplies by; empty where it is no product of ours.

    A head without a matrix of its own takes the embedding's.
    """
    name = f"{op}.weight" if layer is None else f"layers.{layer}.{op}.weight"
    if name in built.matrices and op != "embed":
        return name
    if op == "head" and "embed.weight" in built.matrices:
        return "embed.weight"
    return ""
