"""Owns getting a runner ready, in the order in which memory can be accounted for."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from ..artifact.manifest import Manifest
from ..clock import Laps
from ..device.cuda import CudaDevice
from ..device.host import HostDevice
from ..memory.budget import Budget, budget_pages
from ..memory.sizing import cache_pages
from ..memory.states import state_pages
from ..schedule.limits import Limits
from .collector import collector_frozen
from .cuda_runner import CudaRunner
from .host_runner import HostRunner
from .library import StepLibrary
from .plans import PlanTable
from .runner import Runner

UTILIZATION = 0.92


@dataclass(frozen=True)
class Demand:
    """What a run asks of the device beside the weights.

    `cache_bytes` None: what fits the requests, on a GPU as far as `utilization` of it goes.
    `may_shorten`: requests need not be as long as the limits say, if the cache is too small.
    """

    limits: Limits
    plans: PlanTable
    logit_rows: int
    cache_bytes: int | None = None
    utilization: float = UTILIZATION
    graphs: bool = True
    may_shorten: bool = False

    def states(self, manifest: Manifest) -> int:
        """Return the pages of states, the null page included; 0 where the model has none."""
        limits = self.limits
        return state_pages(manifest.cache, limits.max_num_seqs, limits.steps_in_flight)


def fixed_pages(manifest: Manifest, demand: Demand, on_gpu: bool) -> int | None:
    """Return the pages of the cache where they do not depend on what is left of a GPU.

    Raises CapacityError where one request does not fit.
    """
    if on_gpu and demand.cache_bytes is None:
        return None
    limits = demand.limits
    return cache_pages(
        manifest.cache,
        demand.cache_bytes,
        limits.max_model_len,
        limits.in_flight_tokens,
        limits.max_num_seqs,
        demand.may_shorten,
    )


def ready_runner(
    device: HostDevice | CudaDevice,
    library: StepLibrary,
    manifest: Manifest,
    weights: Mapping[str, torch.Tensor],
    demand: Demand,
    laps: Laps,
) -> tuple[Runner, int]:
    """Return a runner with everything bound, and the pages of its cache.

    `laps` gets buffers, kernels (loaded, and each plan run once), graphs, cache and, on a GPU,
    what freezing Python's collector takes. Raises CapacityError, DeviceMemoryError among them,
    and LaunchError.
    """
    pages = fixed_pages(manifest, demand, isinstance(device, CudaDevice))
    slots = demand.limits.max_num_seqs
    if isinstance(device, HostDevice):
        assert pages is not None
        runner = HostRunner(
            device,
            library,
            manifest,
            weights,
            workspace_bytes=demand.plans.workspace_bytes,
            slots=slots,
            logit_rows=demand.logit_rows,
            pages=pages,
            states=demand.states(manifest),
        )
        laps.end("buffers")
        return runner, pages
    on_gpu = CudaRunner(
        device,
        library,
        manifest,
        weights,
        plans=demand.plans,
        slots=slots,
        logit_rows=demand.logit_rows,
        graphs=demand.graphs,
    )
    laps.end("buffers")
    with collector_frozen() if demand.graphs else nullcontext():
        laps.end("collector")
        on_gpu.warm_up()
        laps.end("kernels")
        if pages is None:
            pages = _pages_left(device, manifest, demand, on_gpu.graph_bytes())
            laps.end("graphs")
        on_gpu.give_cache(pages, demand.states(manifest))
        laps.end("cache")
        on_gpu.capture()
        laps.end("graphs")
    laps.end("collector")
    return on_gpu, pages


def _pages_left(device: CudaDevice, manifest: Manifest, demand: Demand, graph_bytes: int) -> int:
    """Return the pages that fit into what everything else has left."""
    memory, limits = device.api.memory(), demand.limits
    free = max(0, memory.free - demand.states(manifest) * manifest.cache.state_bytes)
    budget = Budget(device.label, memory.total, free, graph_bytes, demand.utilization)
    return budget_pages(
        manifest.cache,
        budget,
        limits.max_model_len,
        limits.in_flight_tokens,
        limits.max_num_seqs,
        demand.may_shorten,
    )
