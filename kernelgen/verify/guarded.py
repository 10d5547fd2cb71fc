"""Owns memory that shows misuse: what lies around a buffer may be neither written nor relied on."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np

from kernelgen.verify.tensors import Tensor

POISON = 0xFF
"""fills what nobody has written: a NaN as float32 and as bfloat16, −1 as an integer"""
_LINE = 64
_PAGE = mmap.PAGESIZE
_HUGE = 4 << 20


class Guarded:
    """A buffer aligned to 64 bytes that ends (but for its last cache line) at an unreadable page.

    Before it lies a page of poison, after it poison up to the line's end. A read or write further
    out ends the process with a signal.
    """

    def __init__(self, shape: Sequence[int], dtype: str) -> None:
        import torch

        kind = getattr(torch, dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        body = -(-size // _LINE) * _LINE
        usable = -(-body // _PAGE) * _PAGE + _PAGE
        memory = mmap.mmap(-1, usable + 2 * _PAGE)
        if usable > _HUGE:  # pools of some 100 MB a run: fewer page faults
            memory.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(memory, np.uint8)
        for edge in (0, usable + _PAGE):
            _protect(whole[edge : edge + _PAGE])
        start = _PAGE + usable - body
        self._before = whole[_PAGE:start]
        self._after = whole[start + size : start + body]
        data = whole[start : start + size]
        for zone in (self._before, self._after, data):
            zone[:] = POISON
        self.tensor: Tensor = torch.from_numpy(data).view(kind).view(*shape)

    @classmethod
    def of(cls, tensor: Tensor) -> Guarded:
        """A guarded copy."""
        made = cls(tensor.shape, str(tensor.dtype).removeprefix("torch."))
        made.tensor.copy_(tensor)
        return made

    @property
    def content(self) -> Tensor:
        """What it holds, on the CPU."""
        return self.tensor

    def damage(self) -> int:
        """Bytes around the buffer that have been written."""
        return int((self._before != POISON).sum() + (self._after != POISON).sum())


def poison(tensor: Tensor) -> None:
    """Fills a tensor with poison, whatever its dtype."""
    import torch

    tensor.view(torch.uint8).fill_(POISON)


def _protect(page: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
    """Makes one page unreadable. A system that refuses leaves it as it is: nothing else is lost."""
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(page.ctypes.data), ctypes.c_size_t(_PAGE), 0)
