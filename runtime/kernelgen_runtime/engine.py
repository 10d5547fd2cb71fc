"""Owns the loop: schedule, launch, take the sampled ids, update."""

import time
from collections import deque
from dataclasses import dataclass

from .artifact.manifest import Manifest
from .launch.program import Flight, Program
from .launch.traffic import Traffic
from .schedule.request import Request
from .schedule.scheduler import Scheduler
from .schedule.step import Step


@dataclass
class DecodeMeter:
    """Sums over the steps in which every request computed one token."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    bytes: int = 0


class Engine:
    """One model, one scheduler; `step` is the whole of it.

    As many steps as the scheduler's limits allow are launched before the oldest is waited for. On
    a device that works by itself the next step is then there before the result of this one is.
    """

    def __init__(self, manifest: Manifest, scheduler: Scheduler, program: Program) -> None:
        self.scheduler = scheduler
        self.meter = DecodeMeter()
        self._program = program
        self._traffic = Traffic(manifest)
        self._flights: deque[tuple[Flight, float]] = deque()
        self._taken = 0.0

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.scheduler.add(request)

    def abort(self, request: Request, reason: str = "abort") -> None:
        """End a request now, wherever it is."""
        self.scheduler.finish(request, reason)

    def step(self) -> list[Request]:
        """Run one step; return the requests that gained a token, finished ones among them."""
        while len(self._flights) < self.scheduler.limits.steps_in_flight and not self._is_held():
            start = time.perf_counter()
            step = self.scheduler.schedule()
            if step is None:
                break
            self._flights.append((self._launch(step), start))
        return self._take() if self._flights else []

    def drain(self) -> None:
        """Take the results of all steps in flight; nothing more is launched."""
        while self._flights:
            self._take()

    def _launch(self, step: Step) -> Flight:
        try:
            return self._program.launch(step, may_hold=bool(self._flights))
        except BaseException:
            # Results come in order: those of earlier steps first, failed or not.
            while self._flights:
                try:
                    self._take()
                except Exception:
                    continue  # its requests have ended with an error; the first error is told
            self.scheduler.fail(step)
            raise

    def _is_held(self) -> bool:
        """Whether the newest step waits for tokens of earlier ones before it chooses."""
        return bool(self._flights) and self._flights[-1][0].wait is None

    def _take(self) -> list[Request]:
        flight, start = self._flights.popleft()
        try:
            sampled = self._program.wait(flight)
        except BaseException:
            self.scheduler.fail(flight.step)
            raise
        gained = self.scheduler.settle(flight.step, sampled)
        if self._is_held() and len(self._flights) == 1:
            # Its logits are being computed; what grammars let through is known only now.
            self._program.resume(self._flights[0][0])
        now = time.perf_counter()
        if flight.step.is_decode:
            self.meter.steps += 1
            self.meter.tokens += flight.step.tokens
            # A step in flight beside another one took the time since that one's end.
            self.meter.seconds += now - max(start, self._taken)
            self.meter.bytes += self._traffic.bytes_of(flight.step)
        self._taken = now
        return gained
