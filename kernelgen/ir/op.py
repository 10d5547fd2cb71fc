"""Owns the interface of an op: shape rule, cost, reference meaning and the traits by which
planners know it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Flag, auto
from typing import Any, ClassVar

from kernelgen.ir.types import Sizes, Type


class Trait(Flag):
    """What a planner may know about an op. It never asks for its name."""

    VIEW = auto()
    """computes nothing: index arithmetic"""
    POINTWISE = auto()
    """output element depends on the same element of inputs (last axis broadcast allowed)"""
    ROW_REDUCE = auto()
    """one number from each row"""
    ROW_MAP = auto()
    """output row depends on the same whole row (rotations)"""
    ROW_MIX = auto()
    """output row depends on the same whole rows of several inputs, by numbers of each of them"""
    GATHER = auto()
    """output row is one row of a table, chosen by an index"""
    SELECT = auto()
    """output row b is input row index[b]"""
    MATMUL = auto()
    ATTENTION = auto()
    STATE_WRITE = auto()
    STATE_READ = auto()
    SAMPLE = auto()
    ROUTE = auto()
    """each row chooses experts, or weighs those that it has chosen"""
    EXPERTS = auto()
    """a product of each row with the matrices of the experts that it has chosen"""
    EXPERT_SUM = auto()
    """the results of a row's experts become one row"""

    SCAN = auto()
    """tokens of a request one after the other, from a state that the op reads and leaves behind as
    its last output"""
    LATENT = auto()
    """attention whose entries are one row for all heads"""
    HEAD_PRODUCT = auto()
    """a product of each head's row with a matrix of its own"""

    ROW_LOCAL = POINTWISE | ROW_REDUCE | ROW_MAP | ROW_MIX
    """everything that one row decides by itself"""


class Op(ABC):
    """One operation; subclasses are frozen dataclasses whose fields are compile-time attributes."""

    kind: ClassVar[str]
    traits: ClassVar[Trait]

    @abstractmethod
    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """Types of the outputs; raises ValueError when the inputs do not fit."""

    @abstractmethod
    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Floating point operations of the whole op."""

    @abstractmethod
    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """Outputs in the precision of the inputs (float64 tensors in tests); `step` is a
        StepView."""

    def read_bytes(self, index: int, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Bytes of input `index` that have to be read; gathers and caches read less than
        everything."""
        return inputs[index].size_bytes(sizes)

    def write_bytes(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Bytes of the outputs that have to be written; a cache insert writes only new rows."""
        return sum(t.size_bytes(sizes) for t in self.infer(inputs))

    def attributes(self) -> str:
        """Canonical text of the compile-time attributes, part of a kernel's variant."""
        return ""

    def has(self, trait: Trait) -> bool:
        """Whether any bit of `trait` is set."""
        return bool(self.traits & trait)
