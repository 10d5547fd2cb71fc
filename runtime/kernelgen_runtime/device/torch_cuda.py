"""Owns every call of `torch.cuda`: one GPU, its streams, events, graphs and pinned memory."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch

from .device import Event, Graph, Memory, Stream
from .found import Gpu

# A ceiling read before the clocks have risen is 40% too low: products come first.
WARM_UP_SECONDS = 1.5
READ_BYTES = 2 << 30


class TorchCuda:
    """An `Accelerator` made of `torch.cuda`."""

    def __init__(self, gpu: Gpu) -> None:
        self.place = torch.device("cuda", gpu.index)
        self.label = f"cuda:{gpu.index} ({gpu.name})"

    def memory(self) -> Memory:
        """Return free and total bytes; what torch keeps for later is given back first."""
        torch.cuda.empty_cache()
        return Memory(*torch.cuda.mem_get_info(self.place))

    def zeros(self, size: int) -> torch.Tensor:
        """Return `size` zero bytes on the device."""
        return torch.zeros(size, dtype=torch.uint8, device=self.place)

    def pinned(self, size: int) -> torch.Tensor:
        """Return `size` bytes of pinned host memory, holding anything."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def stream(self) -> Stream:
        """Return a stream that does not wait for the default one."""
        return torch.cuda.Stream(self.place)  # type: ignore[no-untyped-call]

    def event(self) -> Event:
        """Return an event whose `synchronize` sleeps."""
        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Make `stream` and its device the current ones."""
        return torch.cuda.stream(stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy on the current stream."""
        target.copy_(source, non_blocking=True)

    def graph_pool(self) -> Any:
        """Return a pool that graphs share."""
        return torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None], stream: Any, pool: Any) -> Graph:
        """Record `work`.

        `torch.cuda.graph` would synchronise and empty the allocator's cache for each graph: 0.3 s
        each, for nothing where the work allocates nothing.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # it says that the capture was broken off
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def synchronize(self) -> None:
        """Wait for everything."""
        torch.cuda.synchronize(self.place)

    def read_bandwidth(self, seconds: float) -> float:
        """Return the best of a sum's and a matrix-vector product's read bandwidth, in GB/s."""
        with torch.cuda.device(self.place):
            self._warm_up()
            words = torch.ones(READ_BYTES // 2, dtype=torch.bfloat16, device=self.place)
            matrix, vector = words.view(-1, 4096), words[:4096]
            real = words.view(torch.float32)
            work: tuple[Callable[[], Any], ...] = (real.sum, lambda: matrix.mv(vector))
            return max(_rate(run, seconds / len(work)) for run in work)

    def _warm_up(self) -> None:
        matrix = torch.ones(8192, 8192, dtype=torch.bfloat16, device=self.place)
        end = time.perf_counter() + WARM_UP_SECONDS
        while time.perf_counter() < end:
            for _ in range(8):
                matrix @ matrix
            torch.cuda.synchronize()


def _rate(run: Callable[[], Any], seconds: float) -> float:
    """Return GB/s of the fastest of the runs that fit into `seconds`, at least three."""
    best, end, runs = 0.0, time.perf_counter() + seconds, 0
    while runs < 3 or time.perf_counter() < end:
        start, stop = _timer(), _timer()
        start.record()
        run()
        stop.record()
        stop.synchronize()
        best, runs = max(best, READ_BYTES / start.elapsed_time(stop) / 1e6), runs + 1
    return best


def _timer() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
