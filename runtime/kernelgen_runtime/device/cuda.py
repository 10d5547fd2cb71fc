"""Owns a GPU as a device: allocations that say how much is missing where they do not fit."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import DeviceMemoryError, amount
from .device import Accelerator

_WANTED = re.compile(r"Tried to allocate ([0-9.]+ [KMGT]?i?B)")


class CudaDevice:
    """One GPU behind the calls of an `Accelerator`."""

    alignment = 256
    steps_in_flight = 2

    def __init__(self, api: Accelerator) -> None:
        self.api = api
        self.label, self.place = api.label, api.place

    @contextmanager
    def working(self) -> Iterator[None]:
        """Do what follows on one stream of the device, and wait for it at the end."""
        with self.api.on(self.api.stream()):
            yield
        self.api.synchronize()

    def allocate(self, size: int, what: str, advice: str = "") -> torch.Tensor:
        """Return `size` zero bytes. Raises DeviceMemoryError that says what is missing."""
        memory = self.api.memory()
        # Asked first: the allocator would give back what it keeps and search before it fails.
        if size <= memory.free:
            try:
                return self.api.zeros(size)
            except torch.OutOfMemoryError:
                memory = self.api.memory()
        raise DeviceMemoryError(self.shortage(size, what, memory.free, memory.total, advice))

    def shortage(self, size: int, what: str, free: int, total: int, advice: str = "") -> str:
        """Return the words for `size` bytes that do not fit in `free` of `total`."""
        missing = f"{amount(size - free)} are missing" if size > free else "it is fragmented"
        return (
            f"{self.label}: {what} takes {amount(size)}, {amount(free)} of {amount(total)} are "
            f"free: {missing}{'; ' if advice else ''}{advice}"
        )

    def read_bandwidth(self, seconds: float) -> float | None:
        """Measure the read bandwidth in GB/s; None where memory for it cannot be had."""
        try:
            return self.api.read_bandwidth(seconds)
        except torch.OutOfMemoryError:
            return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a call failed for want of memory: torch's own error, or the driver's in its text."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return "out of memory" in str(error).lower() or "OUT_OF_MEMORY" in str(error)


def out_of_memory_text(device: CudaDevice, error: BaseException, doing: str) -> str:
    """The words for a call that failed for want of memory, before those for what helps."""
    wanted = _WANTED.search(str(error))
    more = f"{wanted.group(1)} more are needed, " if wanted else ""
    left = amount(device.api.memory().free)
    return f"{device.label}: out of memory while {doing}: {more}{left} are free"
