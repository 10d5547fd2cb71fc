"""Owns where a trial's buffers lie and what kernels promise there: the CPU, or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kernelgen.verify.bounded import AS_WRITTEN, Arithmetic
from kernelgen.verify.guarded import Guarded
from kernelgen.verify.tensors import Tensor


class Buffer(Protocol):
    """Memory that shows misuse."""

    tensor: Tensor

    @property
    def content(self) -> Tensor:
        """What it holds, on the CPU."""

    def damage(self) -> int:
        """Bytes around it that have been written."""


@dataclass(frozen=True)
class Promises:
    """What kernels of a place promise, and how they are told what to do."""

    arithmetic: Arithmetic
    repeats: str
    """what the check of repeated runs is called"""
    runs: tuple[int, ...]
    """worker threads of each of them, 0 where there are none to set; all give the same bits"""
    alone_is_equal: bool
    """whether a row has the same bits in any company"""
    by_plan: bool
    """whether a kernel is launched as a plan says: with its tile, on buffers of the plan's size,
    after the launch that prepares step values"""
    cache_by_token: bool
    """see `PagePart`"""
    refusals: tuple[type[Exception], ...]
    """what a library raises where it will not run; after other errors the process must end"""


class Place(Protocol):
    """Where buffers lie."""

    @property
    def device(self) -> str:
        """How torch calls it."""

    @property
    def promises(self) -> Promises:
        """What holds there."""

    def empty(self, shape: Sequence[int], dtype: str) -> Buffer:
        """A buffer full of poison."""

    def copy(self, tensor: Tensor) -> Buffer:
        """A buffer with these contents."""

    def wait(self) -> None:
        """Until everything that was launched is done. Raises what went wrong there."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Something that does the work again: the replay of a graph, where there are graphs."""


HOST = Promises(
    arithmetic=AS_WRITTEN,
    repeats="threads",
    runs=(2, 1, 3),
    alone_is_equal=True,
    by_plan=False,
    cache_by_token=False,
    refusals=(ValueError, TypeError, RuntimeError),
)


@dataclass(frozen=True)
class Host:
    """The CPU; buffers lie between unreadable pages."""

    device: str = "cpu"
    promises: Promises = HOST

    def empty(self, shape: Sequence[int], dtype: str) -> Guarded:
        """A buffer full of poison."""
        return Guarded(shape, dtype)

    def copy(self, tensor: Tensor) -> Guarded:
        """A buffer with these contents."""
        return Guarded.of(tensor)

    def wait(self) -> None:
        """Nothing is ever under way here."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work itself."""
        return work
