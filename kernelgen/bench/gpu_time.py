"""Owns times on a GPU: records of every kernel that ran, and graphs of work replayed in turns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from kernelgen.bench.records import Record
from kernelgen.bench.series import Series

ROUNDS = 5
ROUND_MS = 15.0
_NOT_KERNELS = ("Memcpy", "Memset", "cuda", "cuLaunch", "cuStream", "cuEvent", "cuGraph")


def kernel_records(work: Callable[[], object]) -> list[Record]:
    """Every kernel that ran on the GPU during `work`, as the driver's profiler saw it.

    Calls of the host that torch mixes in, copies and fills are left out.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a cycle ends once: nothing of it is cleared
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            work()
            torch.cuda.synchronize()
    made: Any = profiled.profiler
    return [record for event in made.kineto_results.events() if (record := _record(event))]


def _record(event: Any) -> Record | None:
    name, duration = event.name(), event.duration_ns()
    on_host = event.device_type().name == "CPU"
    if on_host or duration <= 0 or name.startswith(_NOT_KERNELS):
        return None
    return Record(name, event.start_ns(), event.start_ns() + duration)


def graph_us(work: Callable[[], object]) -> Series:
    """µs of all that `work` launches, captured in one graph: rounds of replays back to back.

    Nothing is flushed: `work` itself must go through more memory than the caches hold.
    """
    import torch

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()  # whatever is chosen or allocated once
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):  # torch.cuda.graph would empty the allocator: 0.3 s a graph
        graph.capture_begin()
        try:
            work()
        finally:
            graph.capture_end()
    once = _replayed_ms(graph, 3)
    times = max(3, math.ceil(ROUND_MS / max(once, 1e-3)))
    return Series.of([_replayed_ms(graph, times) for _ in range(ROUNDS)], 1e3)


def _replayed_ms(graph: Any, times: int) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    graph.replay()  # the host is ahead from here on
    begin.record()
    for _ in range(times):
        graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / times
