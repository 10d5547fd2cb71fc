"""Owns streaming a checkpoint to a GPU: threads read ahead into pinned memory, copies overlap."""

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import torch

from ..buffers import rounded
from ..device.cuda import CudaDevice
from ..device.device import Event
from .blocks import Read
from .checkpoint import TORCH_DTYPES, Checkpoint
from .header import DTYPE_BYTES

READERS = 4
# Two for each reader: one is filled while the other is copied.
SLOTS = 2 * READERS


@dataclass(frozen=True)
class Slot:
    """Pinned memory of one read, its place on the device, and when its copy is done."""

    host: torch.Tensor
    device: torch.Tensor
    copied: Event


class StagedTensors:
    """A `TensorSource` on a GPU that must be asked for exactly `reads`, in their order.

    A read is on its way long before it is asked for. Host memory: `SLOTS` times the largest read.
    Use it in a `with`: leaving ends the threads.
    """

    def __init__(self, checkpoint: Checkpoint, reads: Iterable[Read], device: CudaDevice) -> None:
        self.entries = checkpoint.entries
        self._checkpoint, self._api = checkpoint, device.api
        planned = list(reads)
        slots = min(SLOTS, len(planned))
        size = rounded(max((self._bytes(read) for read in planned), default=0), device.alignment)
        # One piece of each kind: the slots are cut from it.
        hosts = self._api.pinned(slots * size).view(slots, size)
        devices = device.allocate(slots * size, "staging for the weights").view(slots, size)
        self._left = iter(planned)
        self._ahead: deque[tuple[Read, Slot, Future[None]]] = deque()
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="weights")
        for host, place in zip(hosts, devices, strict=True):
            self._submit(Slot(host, place, self._api.event()))

    def __enter__(self) -> "StagedTensors":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        # Pinned memory and device slots may go only when no copy uses them.
        self._api.synchronize()

    def rows(self, name: str, first: int, count: int, cols: int) -> torch.Tensor:
        """Return rows of a tensor on the device; see `TensorSource`."""
        read, slot, arrived = self._ahead.popleft()
        assert read == Read(name, first, count, cols), "reads come as they were announced"
        arrived.result()
        size = self._bytes(read)
        self._api.copy(slot.device[:size], slot.host[:size])
        slot.copied.record()
        # The next copy to the slot's place on the device comes after the caller's work in the
        # same stream; its host memory is free once this copy is done.
        self._submit(slot)
        return slot.device[:size].view(TORCH_DTYPES[self.entries[name][0]]).view(count, cols)

    def _submit(self, slot: Slot) -> None:
        """Give the slot to the next read, if there is one left."""
        read = next(self._left, None)
        if read is not None:
            self._ahead.append((read, slot, self._pool.submit(self._fill, read, slot)))

    def _fill(self, read: Read, slot: Slot) -> None:
        slot.copied.synchronize()
        view = slot.host.numpy().data[: self._bytes(read)]
        self._checkpoint.read_into(view, read.tensor, read.first, read.cols)

    def _bytes(self, read: Read) -> int:
        return read.count * read.cols * DTYPE_BYTES[self.entries[read.tensor][0]]
