"""Owns Gluon under Triton's interpreter: rings of blocks in shared memory, and who may read them.

Triton's interpreter knows nothing of Gluon. A kernel's text is given these names instead of
Gluon's own; what has no counterpart, such as layouts, means nothing here. A copy arrives at once, a
product is computed as late as the kernel allows: a place that is filled again too early spoils it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernelgen.verify.bfloat16_bits import widened

IMPORTS = {
    "from triton.experimental import gluon\n": "from kernelgen.verify.rings import gluon\n",
    "from triton.experimental.gluon import language as tl\n": (
        "import triton.language as plain_language\n"
        "from kernelgen.verify.rings import language as tl\n"
    ),
    "from triton.experimental.gluon.language.nvidia.hopper import ": (
        "from kernelgen.verify.rings import "
    ),
}
"""import lines of a kernel, and what stands in for them"""
_UNDER_WAY: list[Callable[[], None]] = []


def spoken_for(text: str) -> str:
    """A kernel's text as the interpreter can run it."""
    for line, instead in IMPORTS.items():
        text = text.replace(line, instead)
    return text


def forget() -> None:
    """Drop products that a kernel which failed has left under way."""
    _UNDER_WAY.clear()


class _Gluon:
    """`gluon.jit` is Triton's own."""

    @staticmethod
    def jit(function: Any) -> Any:
        import triton

        return triton.jit(function)


gluon = _Gluon()


class _Language:
    """Triton's language, and what Gluon has besides: layouts are ignored."""

    def __getattr__(self, name: str) -> Any:
        import triton.language as tl

        return getattr(tl, name)

    @staticmethod
    def _nothing(*unused: Any, **named: Any) -> None:
        return None

    NVMMASharedLayout = NVMMADistributedLayout = BlockedLayout = SliceLayout = _nothing
    thread_barrier = _nothing

    @staticmethod
    def arange(start: int, end: int, layout: Any = None) -> Any:
        import triton.language as tl

        return tl.arange(start, end)

    @staticmethod
    def full(shape: Sequence[int], value: Any, dtype: Any, layout: Any = None) -> Any:
        import triton.language as tl

        return tl.full(shape, value, dtype)

    @staticmethod
    def convert_layout(value: Any, layout: Any) -> Any:
        return value

    @staticmethod
    def zeros(shape: Sequence[int], dtype: Any, layout: Any = None) -> Any:
        import triton.language as tl

        return tl.zeros(shape, dtype)

    @staticmethod
    def allocate_shared_memory(dtype: Any, shape: Sequence[Any], layout: Any) -> _Memory:
        import numpy as np

        sides = [int(side) for side in shape]
        return _Memory(np.full(sides, np.nan, np.float32), [_Barrier() for _ in range(sides[0])])


language = _Language()


class _Memory:
    """Blocks in shared memory, as float32; one that was never filled is NaN."""

    def __init__(self, data: Any, barriers: Sequence[_Barrier] = ()) -> None:
        self.data, self._barriers = data, barriers

    def index(self, place: Any) -> _Memory:
        """One of the blocks, or its barrier."""
        number = int(place)
        return _Memory(self.data[number], self._barriers[number : number + 1])

    def slice(self, start: Any, length: Any, dim: int) -> _Memory:
        """Some lines of a block."""
        assert dim == 0
        return _Memory(self.data[int(start) : int(start) + int(length)])

    def store(self, values: Any) -> None:
        """Fill a block with what registers hold: bfloat16."""
        self.data[...] = widened(values.handle.data)

    def permute(self, order: tuple[int, int]) -> _Memory:
        """Seen the other way round."""
        return _Memory(self.data.transpose(order))

    @property
    def barrier(self) -> _Barrier:
        """Of a block that is one."""
        return self._barriers[0]


class _Barrier:
    """Turns once what it expects has arrived."""

    def __init__(self) -> None:
        self.missing, self.turns, self.expecting = 0, 0, False

    def arrived(self, size: int) -> None:
        self.missing -= size
        if self.expecting and self.missing == 0:
            self.turns, self.expecting = self.turns + 1, False


class mbarrier:
    """Barriers that count bytes."""

    @staticmethod
    def MBarrierLayout() -> None:
        """Means nothing here."""

    @staticmethod
    def init(barrier: _Memory, count: int) -> None:
        """Starts before its first turn."""
        assert int(count) == 1

    @staticmethod
    def expect(barrier: _Memory, size: Any, pred: Any = True) -> None:
        """So many bytes until it turns."""
        if bool(pred):
            assert not barrier.barrier.expecting, "a barrier expects what it has not yet got"
            barrier.barrier.expecting = True
            barrier.barrier.missing += int(size)

    @staticmethod
    def wait(barrier: _Memory, phase: Any) -> None:
        """Raises where a GPU would wait for ever."""
        if barrier.barrier.turns & 1 == int(phase):
            raise RuntimeError(f"waits for ever: {barrier.barrier.missing} bytes are missing")


class tma:
    """Copies by descriptor."""

    @staticmethod
    def async_copy_global_to_shared(
        matrix: Any, place: Sequence[Any], barrier: _Memory, block: _Memory, pred: Any = True
    ) -> None:
        """A block of a matrix, at once; what lies outside is zero."""
        if bool(pred):
            bits = matrix.load(list(place)).handle.data
            block.data[...] = widened(bits)
            barrier.barrier.arrived(bits.nbytes)


def fence_async_shared() -> None:
    """What was stored can be multiplied; nothing to do here."""


class _Sums:
    """Sums that products are still added to."""

    def __init__(self, data: Any) -> None:
        self.data = data


def warpgroup_mma(a: _Memory, b: _Memory, sums: Any, *, is_async: bool) -> _Sums:
    """Begins a product; what it reads may not change before it has been waited for."""
    assert is_async
    made = sums if isinstance(sums, _Sums) else _Sums(sums.handle.data)

    def multiply() -> None:
        made.data = made.data + a.data @ b.data

    _UNDER_WAY.append(multiply)
    return made


def warpgroup_mma_wait(left: int, deps: tuple[_Sums, ...]) -> Any:
    """Ends all products but so many of the last."""
    import triton.language as tl
    from triton.runtime import interpreter

    while len(_UNDER_WAY) > int(left):
        _UNDER_WAY.pop(0)()
    if _UNDER_WAY:
        return deps if len(deps) > 1 else deps[0]
    made = [
        tl.core.tensor(
            interpreter.TensorHandle(one.data, tl.float32),
            tl.block_type(tl.float32, list(one.data.shape)),
        )
        if isinstance(one, _Sums)
        else one
        for one in deps
    ]
    return tuple(made) if len(made) > 1 else made[0]
