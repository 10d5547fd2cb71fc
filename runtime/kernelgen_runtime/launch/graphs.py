"""Owns the CUDA graphs of decode plans: measured, captured largest first, replayed by plan."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from ..artifact.manifest import Plan
from ..device.cuda import CudaDevice, is_out_of_memory
from ..device.device import Graph, Stream
from ..errors import DeviceMemoryError

# What a graph is counted with at least: drivers hand out memory in pieces of this size.
LEAST_BYTES = 1 << 20
ADVICE = (
    "lower --kv-cache-memory-bytes, --gpu-memory-utilization or --max-num-seqs, or give --eager"
)


class DecodeGraphs:
    """A graph for each decode plan. `run(plan)` gives a step of the plan to the current stream.

    Graphs hold the addresses of all bound buffers. A step allocates nothing, so a graph costs what
    the driver needs for its nodes; all share one (empty) pool of torch all the same.
    """

    def __init__(self, device: CudaDevice, stream: Stream, run: Callable[[Plan], None]) -> None:
        self._device, self._api = device, device.api
        self._stream, self._run = stream, run
        self._graphs: dict[int, Graph] = {}
        self._each = LEAST_BYTES

    def estimate(self, plans: Sequence[Plan]) -> int:
        """Return the bytes that the graphs of `plans` will take.

        The two largest are captured and thrown away: they are bound to buffers that will go. The
        first pays for what all share, the second says what each further one costs at most.
        """
        # A pool of their own: torch does not take one again whose graphs have all gone.
        pool = self._api.graph_pool()
        free, kept = [self._api.memory().free], []
        for plan in _largest_first(plans)[:2]:
            kept.append(self._captured(plan, pool))
            free.append(self._api.memory().free)
        costs = [max(0, before - after) for before, after in pairwise(free)]
        self._each = max([LEAST_BYTES, *costs[1:]])
        return sum(costs[:1]) + max(0, len(plans) - 1) * self._each

    def capture(self, plans: Sequence[Plan]) -> None:
        """Capture every plan; each is replayed once, with the args that are on the device.

        Those must ask for nothing. Raises DeviceMemoryError where memory runs out.
        """
        pool = self._api.graph_pool()
        for plan in _largest_first(plans):
            self._graphs[plan.id] = self._captured(plan, pool)

    def holds(self, plan: Plan) -> bool:
        """Whether the plan has a graph."""
        return plan.id in self._graphs

    def replay(self, plan: Plan) -> bool:
        """Give the plan's graph to the current stream; False where it has none."""
        graph = self._graphs.get(plan.id)
        if graph is None:
            return False
        graph.replay()
        return True

    def _captured(self, plan: Plan, pool: Any) -> Graph:
        try:
            graph = self._api.capture(lambda: self._run(plan), self._stream, pool)
            with self._api.on(self._stream):
                graph.replay()  # the driver takes the graph's memory now and not under load
            self._api.synchronize()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            memory, what = self._api.memory(), f"the graph of {plan.size} requests"
            raise DeviceMemoryError(
                self._device.shortage(self._each, what, memory.free, memory.total, ADVICE)
            ) from None
        return graph


def _largest_first(plans: Sequence[Plan]) -> list[Plan]:
    return sorted(plans, key=lambda plan: plan.size, reverse=True)
