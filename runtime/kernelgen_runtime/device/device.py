"""Owns what the runtime asks of any device, and of one that works on its own behind streams."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Memory:
    """Bytes of a device: not taken by anyone, and in all."""

    free: int
    total: int


class Device(Protocol):
    """Where buffers lie and steps run.

    `alignment`: bytes at which tensors cut from an allocation start. `steps_in_flight`: how many
    steps may have been launched and not yet been waited for.
    """

    label: str
    place: torch.device
    alignment: int
    steps_in_flight: int

    def allocate(self, size: int, what: str, advice: str = "") -> torch.Tensor:
        """Return `size` zero bytes (uint8). Raises DeviceMemoryError naming `what`."""

    def read_bandwidth(self, seconds: float) -> float | None:
        """Measure the read bandwidth in GB/s for about `seconds`; None where it cannot."""


class Event(Protocol):
    """A point in the work of a stream."""

    def record(self, stream: Any = None) -> None:
        """Mark what the stream (None: the current one) has been given so far."""

    def wait(self) -> None:
        """Let what the current stream is given from now on wait for that."""

    def synchronize(self) -> None:
        """Wait until that is done."""


class Stream(Protocol):
    """Work that a device does in order, beside other streams."""

    def wait_event(self, event: Any) -> None:
        """Let what comes next wait for `event`."""

    def synchronize(self) -> None:
        """Wait until all of it is done."""


class Graph(Protocol):
    """A recorded run of work."""

    def replay(self) -> None:
        """Give all of it to the current stream."""


class Accelerator(Protocol):
    """The calls of one GPU that the runtime makes; tests put a fake in their place.

    `copy` and everything a library launches go to the current stream and return at once.
    """

    label: str
    place: torch.device

    def memory(self) -> Memory:
        """Return what the device has left, memory that torch merely keeps counted as free."""

    def zeros(self, size: int) -> torch.Tensor:
        """Return `size` zero bytes on the device. Raises torch.OutOfMemoryError."""

    def pinned(self, size: int) -> torch.Tensor:
        """Return `size` bytes of host memory, holding anything, that the device itself copies."""

    def stream(self) -> Stream:
        """Return a new stream."""

    def event(self) -> Event:
        """Return a new event whose `synchronize` sleeps and does not spin."""

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Make `stream` the current one inside a `with`."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy between pinned host memory and the device."""

    def graph_pool(self) -> Any:
        """Return a memory pool that graphs share."""

    def capture(self, work: Callable[[], None], stream: Stream, pool: Any) -> Graph:
        """Record what `work` gives to `stream`; nothing of it runs."""

    def synchronize(self) -> None:
        """Wait for everything; errors of earlier work come up here."""

    def read_bandwidth(self, seconds: float) -> float:
        """Measure the read bandwidth in GB/s for about `seconds` after a warm-up."""
