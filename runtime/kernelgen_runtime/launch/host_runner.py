"""Owns running steps on the CPU: args and results are in plain sight, a step returns when done."""

from collections.abc import Mapping

import torch

from ..artifact.manifest import Manifest, Plan
from ..device.host import HostDevice
from .args import ArgsWriter, SlotSampling
from .library import StepLibrary
from .runner import Logits, Waiter, make_buffers


class HostRunner:
    """A `Runner` whose buffers live as long as this object."""

    def __init__(
        self,
        device: HostDevice,
        library: StepLibrary,
        manifest: Manifest,
        weights: Mapping[str, torch.Tensor],
        *,
        workspace_bytes: int,
        slots: int,
        logit_rows: int,
        pages: int,
    ) -> None:
        self.logit_rows = logit_rows
        self._library = library
        words = torch.zeros(manifest.args.words, dtype=torch.int32)
        self._args = ArgsWriter(manifest.args, SlotSampling(slots), words)
        page_bytes = manifest.cache.page_bytes
        cache = device.allocate(pages * page_bytes, "a cache", "lower --kv-cache-memory-bytes")
        made = make_buffers(device, manifest, workspace_bytes, slots, logit_rows)
        self._bound = {**weights, **made, "cache": cache.view(pages, page_bytes)}
        for name, tensor in self._bound.items():
            library.bind(name, tensor)

    def misses_graph(self, plan: Plan) -> bool:
        """Return False: there are no graphs here."""
        return False

    def args(self) -> ArgsWriter:
        """Return the args of the next step."""
        return self._args

    def start(self, plan: Plan, asked: int) -> Waiter:
        """Run a step to its end. Raises LaunchError where the library refuses."""
        self._library.step(plan.id, self._args.tensor)
        ids = self._bound["sampled"][:asked].clone().numpy()
        return lambda: ids

    def logits(self, count: int) -> Logits:
        """Return rows of logits."""
        rows: Logits = self._bound["logits"][:count].numpy()
        return rows
