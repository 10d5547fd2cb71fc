"""Owns memory for bound buffers: host pages that cost once touched, tensors cut from one piece."""

import math
import mmap
from collections.abc import Sequence

import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
}


def host_bytes(size: int) -> torch.Tensor:
    """Return `size` zero bytes (uint8, page-aligned) that cost memory only once they are written.

    Raises MemoryError when the address space cannot be had.
    """
    try:
        region = mmap.mmap(-1, max(size, 1))
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"cannot map {size} bytes") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Weights are streamed once a step: 2 MiB pages take the page walks out of that stream.
        region.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(region, dtype=torch.uint8)[:size]


def byte_size(shape: Sequence[int], dtype: str) -> int:
    """Return the bytes of a dense tensor."""
    return math.prod(shape) * DTYPES[dtype].itemsize


class Arena:
    """One allocation that many tensors are cut from, each on a boundary of `alignment` bytes."""

    def __init__(self, content: torch.Tensor, alignment: int) -> None:
        self._bytes, self._alignment = content, alignment
        self.used = 0
        """bytes that have been cut off"""

    def take(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        """Cut the next tensor; its elements are as the allocation holds them."""
        size = byte_size(shape, dtype)
        start, self.used = self.used, self.used + rounded(size, self._alignment)
        assert self.used <= len(self._bytes), "arena is sized by its owner"
        return self._bytes[start : start + size].view(DTYPES[dtype]).view(*shape)


def rounded(size: int, alignment: int) -> int:
    """Return what a tensor of `size` bytes takes of an arena."""
    return -(-size // alignment) * alignment
