"""A GPU made of queues: streams run late and in any order, so that a missing wait shows.

Work given to a stream stays in its queue until somebody waits for it (or chance lets it run), and
copies read their source only then. Events order streams as CUDA's do. Memory is counted.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from kernelgen_runtime.artifact.manifest import Manifest
from kernelgen_runtime.device.choose import Choice
from kernelgen_runtime.device.cuda import CudaDevice
from kernelgen_runtime.device.device import Memory
from kernelgen_runtime.device.found import Gpu
from runtime_fakes import FakeLibrary

H200 = Gpu(0, "NVIDIA H200", 90)


@dataclass(eq=False)
class Work:
    """One entry of a queue: `run` when `after` is done."""

    run: Callable[[], None]
    after: Work | None = None
    done: bool = False


@dataclass(eq=False)
class FakeStream:
    gpu: FakeCuda
    queue: deque[Work] = field(default_factory=deque)

    def wait_event(self, event: FakeEvent) -> None:
        self.gpu.give(lambda: None, self, after=event.last)

    def synchronize(self) -> None:
        self.gpu.run_until(lambda: not self.queue)


@dataclass(eq=False)
class FakeEvent:
    gpu: FakeCuda
    last: Work | None = None

    def record(self, stream: FakeStream | None = None) -> None:
        self.last = self.gpu.give(lambda: None, stream or self.gpu.current)

    def wait(self) -> None:
        self.gpu.give(lambda: None, self.gpu.current, after=self.last)

    def synchronize(self) -> None:
        work = self.last
        self.gpu.run_until(lambda: work is None or work.done)


@dataclass(eq=False)
class FakeGraph:
    gpu: FakeCuda
    work: list[Callable[[], None]]

    def replay(self) -> None:
        assert self.work, "an empty graph"
        for run in self.work:
            self.gpu.give(run, self.gpu.current)


class FakeCuda:
    """`Accelerator` on host memory. `eager` runs everything at once, as `random` else says.

    `graph_bytes` says what each capture in turn takes of memory (the last one repeats);
    `spoil` is called before each capture and may raise.
    """

    label = "cuda:0 (NVIDIA H200)"
    place = torch.device("cpu")

    def __init__(
        self,
        seed: int = 0,
        *,
        total: int = 1 << 30,
        eager: bool = False,
        graph_bytes: tuple[int, ...] = (0,),
        spoil: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.random = random.Random(seed)
        self.total, self.used, self.eager = total, 0, eager
        self.graph_bytes, self.spoil = graph_bytes, spoil
        self.captures = 0
        self.capturing: list[Callable[[], None]] | None = None
        self.streams: list[FakeStream] = []
        self.default = self.stream()
        self._local = threading.local()  # the current stream is one of each thread
        self.guard = threading.RLock()  # readers of weights wait for events in threads of their own
        self.words_sent = 0
        self.pinned_bytes = 0

    @property
    def current(self) -> FakeStream:
        return getattr(self._local, "stream", self.default)

    def memory(self) -> Memory:
        return Memory(self.total - self.used, self.total)

    def zeros(self, size: int) -> torch.Tensor:
        if self.used + size > self.total:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        self.used += size
        base = torch.zeros(size + 256, dtype=torch.uint8)
        start = -base.data_ptr() % 256
        return base[start : start + size]

    def pinned(self, size: int) -> torch.Tensor:
        self.pinned_bytes += size
        return torch.full((size,), 0xEE, dtype=torch.uint8)

    def stream(self) -> FakeStream:
        self.streams.append(FakeStream(self))
        return self.streams[-1]

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    @contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        before, self._local.stream = self.current, stream
        try:
            yield
        finally:
            self._local.stream = before

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        assert target.shape == source.shape and target.dtype == source.dtype
        self.words_sent += target.numel()

        def run() -> None:
            target.copy_(source)

        self.give(run, self.current)

    def graph_pool(self) -> Any:
        return object()

    def capture(self, work: Callable[[], None], stream: FakeStream, pool: Any) -> FakeGraph:
        assert self.capturing is None and stream is not self.default and pool is not None
        self.spoil(self.captures)
        self.used += self.graph_bytes[min(self.captures, len(self.graph_bytes) - 1)]
        self.captures += 1
        self.capturing = []
        try:
            with self.on(stream):
                work()
            return FakeGraph(self, self.capturing)
        finally:
            self.capturing = None

    def synchronize(self) -> None:
        self.run_until(lambda: not any(stream.queue for stream in self.streams))

    def read_bandwidth(self, seconds: float) -> float:
        return 4000.0

    def give(self, run: Callable[[], None], stream: FakeStream, after: Work | None = None) -> Work:
        """Queue `run` on `stream`, or record it in the capture that is going on."""
        work = Work(run, after)
        if self.capturing is not None:
            self.capturing.append(run)
            return work
        if self.eager:
            run()
            work.done = True
            return work
        with self.guard:
            stream.queue.append(work)
            while self.random.random() < 0.3 and self._advance():
                pass
        return work

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Let streams advance by chance until `reached`."""
        assert self.capturing is None, "nothing may wait inside a capture"
        with self.guard:
            while not reached():
                assert self._advance(), "a stream waits for something that was never given"

    def _advance(self) -> bool:
        ready = [s for s in self.streams if s.queue and _is_ready(s.queue[0])]
        if not ready:
            return False
        work = self.random.choice(ready).queue.popleft()
        work.run()
        work.done = True
        return True


def _is_ready(work: Work) -> bool:
    return work.after is None or work.after.done


class FakeGpuLibrary(FakeLibrary):
    """The toy library as one on a GPU: a step is work of the current stream.

    Addresses are those bound when the step was given, as in a graph. An empty step does what a
    careless kernel does: it leaves garbage in the null page.
    """

    gpu: FakeCuda

    def load(self, plan_id: int) -> None:
        self.loaded = {*getattr(self, "loaded", ()), plan_id}

    def step(self, plan_id: int, args: torch.Tensor) -> None:
        capturing = self.gpu.capturing is not None
        assert not capturing or plan_id in self.loaded, "nothing is loaded inside a capture"
        plan = next(plan for plan in self.values["plans"] if plan["id"] == plan_id)
        for name in ("logits", "sampled"):
            assert len(self.buffers[name]) >= plan["logit_rows"], name
        assert len(self.buffers["counters"]) == self.values["counters"]
        bound = dict(self.buffers)
        self.gpu.give(lambda: self._run(plan_id, args, bound), self.gpu.current)

    def _run(self, plan_id: int, args: torch.Tensor, bound: dict[str, torch.Tensor]) -> None:
        now, self.buffers = self.buffers, bound
        try:
            counts = args[:4].tolist()
            if counts[0]:
                assert not bound["cache"][0].any(), "the null page holds something"
                super().step(plan_id, args)
            else:
                assert counts == [0, 0, 0, 0]
                bound["cache"][0].fill_(0xFF)
        finally:
            self.buffers = now


def fake_gpu(
    values: dict[str, Any], manifest: Manifest, gpu: FakeCuda
) -> tuple[Choice, CudaDevice, FakeGpuLibrary]:
    """What an LLM is given to run on `gpu`."""
    library = FakeGpuLibrary(values)
    library.gpu = gpu
    return Choice(manifest, H200), CudaDevice(gpu), library
