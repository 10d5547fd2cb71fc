"""Owns the launch interface: what generated GPU kernels tell the step program."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.ir.types import Sizes
from kernelgen.planner.plan import Kernel

Grid = tuple[int, int, int]


class Pointer(enum.Enum):
    """An address that the step program knows, whatever the kernel's signature holds."""

    ARGS = "args"
    """the step's arguments: int32 words on the device, laid out as `ArgsLayout` says"""
    CACHE = "cache"
    """first page of the cache"""
    SCRATCH = "scratch"
    """workspace of this launch alone, shared by its passes"""
    COUNTERS = "counters"
    """int32 words, zero before the launch; the launch leaves them zero"""
    LOGITS = "logits"
    SAMPLED = "sampled"
    LAST_SAMPLED = "last_sampled"
    RULES = "rules"
    LOGPROBS = "logprobs"
    MASKS = "masks"
    TOKEN_IDS = "token_ids"
    """int32 [T]: ids resolved and clamped; −1 for padding. Written by the first launch of a step"""
    POSITIONS = "positions"
    """int32 [T]"""
    ROWS = "rows"
    """int32 [T]: request row of each token row; −1 for padding"""


@dataclass(frozen=True)
class Operand:
    """Address of the operand at this place of the kernel's signature.

    The cache for a state, the place of step values in the workspace, the step's arguments for
    `logit_tokens` and `sampling`, and the right one of scratch and counters.
    """

    index: int


@dataclass(frozen=True)
class LayerOffset:
    """int64: bytes from the start of a page to the place of the launch's layer.

    `index`: the operand, by its place in the signature, that says which of the layer's states is
    meant; without one it is the first.
    """

    index: int | None = None


@dataclass(frozen=True)
class BlockTable:
    """Address of the block table of the layer's cache group inside the step's arguments: int32."""


@dataclass(frozen=True)
class Constant:
    """An integer that the plan's sizes decide: number of splits, rows, …"""

    of: Callable[[Sizes], int]


@dataclass(frozen=True)
class Matrix:
    """A descriptor of the operand at this place of the signature: `rows` × `columns` elements, row
    after row. Blocks of it may stick out: what lies outside reads as zero.

    A row is a multiple of 16 bytes. Rows are those of the plan and not of the step, which the
    launch does not know.
    """

    index: int
    rows: Callable[[Sizes], int]
    columns: int


Parameter = Operand | Pointer | LayerOffset | BlockTable | Constant | Matrix

MOST_MATRICES = 8
"""descriptors of one launch, as `launch.h` has room for"""


@dataclass(frozen=True)
class GpuPass:
    """One launch: `parameters` in the order of the unit's signature, `grid` from the plan's sizes.

    A grid without blocks is not launched.
    """

    unit: TritonUnit
    parameters: tuple[Parameter, ...]
    grid: Callable[[Sizes], Grid]

    def __post_init__(self) -> None:
        arguments = self.unit.signature
        if len(arguments) != len(self.parameters):
            raise ValueError(
                f"{self.unit.name} takes {len(arguments)} arguments, not {len(self.parameters)}"
            )
        if sum(isinstance(p, Matrix) for p in self.parameters) > MOST_MATRICES:
            raise ValueError(f"{self.unit.name} takes more than {MOST_MATRICES} descriptors")
        for argument, parameter in zip(arguments, self.parameters, strict=True):
            if argument.type not in _types(parameter):
                raise ValueError(
                    f"{self.unit.name}: {argument.name} is {argument.type}, given {parameter}"
                )


@dataclass(frozen=True)
class GpuKernel:
    """All launches that do the work of one planned kernel with one tile, first to last."""

    passes: tuple[GpuPass, ...]


GpuKernels = Mapping[str, GpuKernel]
"""`launch_key` → what to launch"""


def launch_key(kernel: Kernel, choice: Mapping[str, int]) -> str:
    """What decides the compiled code of a planned kernel: its variant and its tile."""
    tile = ",".join(f"{name}={value}" for name, value in sorted(choice.items()))
    return f"{kernel.name}({tile})"


@dataclass(frozen=True)
class _Starting:
    with_: str

    def __contains__(self, text: str) -> bool:
        return text.startswith(self.with_)


def _types(parameter: Parameter) -> _Starting | tuple[str, ...]:
    if isinstance(parameter, Operand | Pointer | BlockTable):
        return _Starting("*")
    if isinstance(parameter, Matrix):
        return _Starting("tensordesc<")
    return ("i64",) if isinstance(parameter, LayerOffset) else ("i32", "i64")
