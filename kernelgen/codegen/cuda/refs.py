"""Owns references: where a launch's parameters come from, as the step program's C++ spells it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelgen.codegen.cuda.launches import (
    BlockTable,
    Constant,
    GpuPass,
    LayerOffset,
    Matrix,
    Operand,
    Parameter,
    Pointer,
)
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.weights import BoundWeight
from kernelgen.ir.types import Sizes
from kernelgen.planner.caches import CacheSchema
from kernelgen.planner.plan import COUNTERS, SCRATCH
from kernelgen.planner.plan import Operand as Given

STEP_VALUES = ("token_ids", "positions", "rows")
"""step values that lie at the start of the workspace; the others are read from the arguments"""

_ARGS = "args(0)"
_NAMED = {SCRATCH: Pointer.SCRATCH, COUNTERS: Pointer.COUNTERS}


class References:
    """The table of references: each distinct list of parameters once."""

    def __init__(
        self, weights: Sequence[BoundWeight], cache: CacheSchema, args: ArgsLayout
    ) -> None:
        self.layers = sorted(cache.places)
        self.offsets = [cache.places[layer].at(number) for layer, number in cache.kept_places]
        self._weight = {w.name: i for i, w in enumerate(weights)}
        self._layer = {place: i for i, place in enumerate(cache.kept_places)}
        self._cache = cache
        self._args = args
        self._first: dict[tuple[str, ...], int] = {}
        self._count = 0
        self.lines: list[dict[str, Any]] = []
        self.matrices: dict[str, int] = {}
        """`{reference, rows, columns}` as C++ → number"""

    def of(
        self,
        one: GpuPass,
        operands: Sequence[Given],
        layer: int | None,
        sizes: Sizes,
        slots: dict[int, int],
    ) -> int:
        """Number of the first reference of a launch; `slots` numbers the plan's buffers."""
        refs = tuple(self._ref(p, operands, layer, sizes, slots) for p in one.parameters)
        if not refs:
            return 0
        if refs not in self._first:
            self._first[refs] = self._count
            names = [a.name for a in one.unit.signature]
            note = f"{one.unit.name}({', '.join(names)})"
            self.lines.append({"refs": refs, "first": self._count, "note": note})
            self._count += len(refs)
        return self._first[refs]

    def _ref(
        self,
        parameter: Parameter,
        operands: Sequence[Given],
        layer: int | None,
        sizes: Sizes,
        slots: dict[int, int],
    ) -> str:
        if isinstance(parameter, Operand):
            return self._operand(operands[parameter.index], slots)
        if isinstance(parameter, Matrix):
            start = self._operand(operands[parameter.index], slots)
            entry = f"{start}, {parameter.rows(sizes)}, {parameter.columns}"
            return f"matrix({self.matrices.setdefault(entry, len(self.matrices))})"
        if isinstance(parameter, Constant):
            return f"integer({parameter.of(sizes)})"
        if isinstance(parameter, Pointer):
            return self._pointer(parameter, operands, slots)
        if layer is None:
            raise ValueError(f"{parameter}: the launch belongs to no layer")
        if isinstance(parameter, LayerOffset):
            index = parameter.index
            number = 0 if index is None else operands[index].number
            return f"layer_offset({self._layer[layer, number]})"
        assert isinstance(parameter, BlockTable)
        group = self._cache.groups[self._cache.places[layer].group]
        return f"args({self._args.offset(f'block_table.{group.name}')})"

    def _operand(self, operand: Given, slots: dict[int, int]) -> str:
        if operand.kind == "buffer":
            return f"slot({slots.setdefault(operand.offset_bytes, len(slots))})"
        if operand.kind == "weight":
            return f"weight({self._weight[operand.name]})"
        if operand.kind == "state":
            return "bound(STATES)" if self._of_requests(operand.layer) else "bound(CACHE)"
        if operand.kind == "bound":
            return f"bound({operand.name.upper()})"
        if operand.name in STEP_VALUES:
            return f"value({operand.name.upper()})"
        return _ARGS

    def _of_requests(self, layer: int | None) -> bool:
        """Whether what a layer keeps belongs to requests and not to tokens."""
        place = None if layer is None else self._cache.places[layer]
        return place is not None and self._cache.groups[place.group].per_request

    def _pointer(self, pointer: Pointer, operands: Sequence[Given], slots: dict[int, int]) -> str:
        if pointer is Pointer.ARGS:
            return _ARGS
        if pointer is Pointer.SCRATCH:
            return self._operand(operands[_scratch(operands)], slots)
        if pointer.value in STEP_VALUES:
            return f"value({pointer.value.upper()})"
        return f"bound({pointer.value.upper()})"


def parameter_places(
    parameters: Sequence[Parameter], operands: Sequence[Given], signature: Sequence[str]
) -> tuple[int, ...]:
    """For each parameter the place in the signature of the operand that it points to, or −1."""
    named = {_NAMED[name]: i for i, name in enumerate(signature) if name in _NAMED}
    states = [i for i, operand in enumerate(operands) if operand.kind == "state"]
    if states:
        named[Pointer.CACHE] = states[0]
    return tuple(
        p.index
        if isinstance(p, Operand | Matrix)
        else named.get(p, -1)
        if isinstance(p, Pointer)
        else -1
        for p in parameters
    )


def _scratch(operands: Sequence[Given]) -> int:
    for i, operand in enumerate(operands):
        if operand.kind == "buffer" and operand.name.startswith(f"{SCRATCH}."):
            return i
    raise ValueError("a launch without scratch has a parameter for it")
