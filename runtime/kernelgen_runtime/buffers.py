"""Owns host memory for bound buffers: page-aligned, zeroed, resident only where it was touched."""

import math
import mmap
from collections.abc import Sequence

import torch

ALIGNMENT = 64
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
    """One allocation that many tensors are cut from, each on a 64-byte boundary."""

    def __init__(self, size: int) -> None:
        self._bytes = host_bytes(size)
        self._used = 0

    @staticmethod
    def rounded(size: int) -> int:
        """Return what a tensor of `size` bytes takes of an arena."""
        return -(-size // ALIGNMENT) * ALIGNMENT

    def take(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        """Cut the next tensor; its elements are zero."""
        size = byte_size(shape, dtype)
        start, self._used = self._used, self._used + self.rounded(size)
        assert self._used <= len(self._bytes), "arena is sized by its owner"
        return self._bytes[start : start + size].view(DTYPES[dtype]).view(*shape)
