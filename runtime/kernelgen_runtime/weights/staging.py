"""Owns streaming a checkpoint to a GPU: threads read ahead into pinned memory, copies overlap."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import torch

from ..buffers import rounded
from ..clock import default_threads
from ..device.cuda import CudaDevice, is_out_of_memory
from ..device.device import Event
from ..errors import DeviceMemoryError, amount
from .blocks import Read
from .checkpoint import TORCH_DTYPES, Checkpoint
from .header import DTYPE_BYTES

# One reader moves 2 to 5 GB/s out of the page cache; half of the processors are left to others.
READERS = max(2, min(8, default_threads() // 2))
# One for each reader and as many again, up to four, that are copied or worked on meanwhile.
SLOTS = READERS + min(READERS, 4)
ADVICE = "free some of it, or choose another GPU with --device cuda:N"


@dataclass(frozen=True)
class Batch:
    """Reads that share a slot, in order, with where each starts in it and where the last ends."""

    reads: tuple[Read, ...]
    starts: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Slot:
    """Pinned memory of one batch and its place on the device.

    `copied`: what was read has arrived there; `used`: the work on it is done.
    """

    host: torch.Tensor
    device: torch.Tensor
    copied: Event
    used: Event


class StagedTensors:
    """A `TensorSource` on a GPU that must be asked for exactly `reads`, in their order.

    A read is on its way, and its copy too, long before it is asked for: readers copy on a stream
    of their own, beside the work of whoever asks. Small reads share a copy and what it takes to
    hand it over, up to `batch_bytes`. Host memory: `SLOTS` times the larger of these and of the
    largest read. Use it in a `with`: leaving ends the threads.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        reads: Iterable[Read],
        device: CudaDevice,
        batch_bytes: int = 0,
    ) -> None:
        self.entries = checkpoint.entries
        self._checkpoint, self._api = checkpoint, device.api
        planned = list(_batches(reads, self._bytes, batch_bytes, device.alignment))
        slots = min(SLOTS, len(planned))
        size = rounded(max((batch.bytes for batch in planned), default=0), device.alignment)
        # One piece of each kind: the slots are cut from it.
        hosts = _pinned(device, slots * size).view(slots, size)
        what = "staging for the weights"
        devices = device.allocate(slots * size, what, ADVICE).view(slots, size)
        self._left = iter(planned)
        self._ahead: deque[tuple[Batch, Slot, Future[None]]] = deque()
        self._here: deque[tuple[Read, int]] = deque()
        self._given: Slot | None = None
        self._side = self._api.stream()
        ready = self._api.event()
        ready.record()  # the places are zeroed on the stream of whoever made them
        self._side.wait_event(ready)
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="weights")
        for host, place in zip(hosts, devices, strict=True):
            self._submit(Slot(host, place, self._api.event(), self._api.event()))

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
        if not self._here:
            self._next_batch()
        read, start = self._here.popleft()
        assert read == Read(name, first, count, cols), "reads come as they were announced"
        assert self._given is not None
        place = self._given.device[start : start + self._bytes(read)]
        return place.view(TORCH_DTYPES[self.entries[name][0]]).view(count, cols)

    def _next_batch(self) -> None:
        """Wait for the next batch; the slot of the last one is free for another."""
        if self._given is not None:
            # What the caller does with the last rows has been given to its stream by now.
            self._given.used.record()
            self._submit(self._given)
        batch, slot, arrived = self._ahead.popleft()
        arrived.result()
        slot.copied.wait()
        self._given = slot
        self._here.extend(zip(batch.reads, batch.starts, strict=True))

    def _submit(self, slot: Slot) -> None:
        """Give the slot to the next batch, if there is one left."""
        batch = next(self._left, None)
        if batch is not None:
            self._ahead.append((batch, slot, self._pool.submit(self._fill, batch, slot)))

    def _fill(self, batch: Batch, slot: Slot) -> None:
        """What a reader does: its host memory is free once the copy before is done, its place on
        the device once the work on what lay there is."""
        slot.copied.synchronize()
        whole = slot.host.numpy().data
        for read, start in zip(batch.reads, batch.starts, strict=True):
            view = whole[start : start + self._bytes(read)]
            self._checkpoint.read_into(view, read.tensor, read.first, read.cols)
        with self._api.on(self._side):
            slot.used.wait()
            self._api.copy(slot.device[: batch.bytes], slot.host[: batch.bytes])
            slot.copied.record()

    def _bytes(self, read: Read) -> int:
        return read.count * read.cols * DTYPE_BYTES[self.entries[read.tensor][0]]


def _batches(
    reads: Iterable[Read], size_of: Callable[[Read], int], most: int, align: int
) -> Iterator[Batch]:
    """Yield reads in order, together as long as they take at most `most` bytes."""
    mine, starts, end = list[Read](), list[int](), 0
    for read in reads:
        start = rounded(end, align)
        if mine and start + size_of(read) > most:
            yield Batch(tuple(mine), tuple(starts), end)
            mine, starts, start = [], [], 0
        mine.append(read)
        starts.append(start)
        end = start + size_of(read)
    if mine:
        yield Batch(tuple(mine), tuple(starts), end)


def _pinned(device: CudaDevice, size: int) -> torch.Tensor:
    try:
        return device.api.pinned(size)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceMemoryError(
            f"{device.label}: no pinned host memory for {amount(size)} of staging for the weights; "
            "free memory of the host, or raise its limit of locked memory (ulimit -l)"
        ) from None
