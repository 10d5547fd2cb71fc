"""Owns the loop: schedule, launch, take the sampled ids, update."""

import time
from dataclasses import dataclass

from .artifact.manifest import Manifest
from .launch.program import Program
from .launch.traffic import cache_bytes, weight_bytes
from .schedule.request import Request
from .schedule.scheduler import Scheduler


@dataclass
class DecodeMeter:
    """Sums over the steps in which every request computed one token."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    bytes: int = 0


class Engine:
    """One model, one scheduler; `step` is the whole of it."""

    def __init__(self, manifest: Manifest, scheduler: Scheduler, program: Program) -> None:
        self.scheduler = scheduler
        self.meter = DecodeMeter()
        self._manifest = manifest
        self._program = program
        self._weight_bytes = weight_bytes(manifest)

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.scheduler.add(request)

    def abort(self, request: Request, reason: str = "abort") -> None:
        """End a request now, wherever it is."""
        self.scheduler.finish(request, reason)

    def step(self) -> list[Request]:
        """Run one step; return the requests that gained a token, finished ones among them."""
        start = time.perf_counter()
        step = self.scheduler.schedule()
        if step is None:
            return []
        try:
            sampled = self._program.run(step)
        except BaseException:
            self.scheduler.fail(step)
            raise
        gained = self.scheduler.settle(step, sampled)
        if step.is_decode:
            self.meter.steps += 1
            self.meter.tokens += step.tokens
            self.meter.seconds += time.perf_counter() - start
            self.meter.bytes += self._weight_bytes + cache_bytes(self._manifest, step)
        return gained
