"""Owns the loop of the engine process: take messages, step, tell what came of it."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

from ..errors import KernelgenRuntimeError, LaunchError
from ..guide.trial import Trial
from ..llm import LLM
from ..sample.structured import Structured
from ..schedule.request import Request
from .live import Live
from .pipe import EnginePipe, PipeClosedError
from .wire import (
    Abort,
    Accepted,
    Close,
    Load,
    Ping,
    Pong,
    Refused,
    Reset,
    Stepped,
    Submit,
    ToEngine,
    Update,
)

MOST_FAILURES = 3
"""steps that fail one after the other before the engine counts as dead"""
IDLE_AFTER = 1.0
"""seconds without work after which it is idle"""
MEASURE_SECONDS = 0.1


class EngineLoop:
    """Runs an LLM for the process at the other end of `pipe`."""

    def __init__(self, llm: LLM, pipe: EnginePipe) -> None:
        self._llm, self._pipe = llm, pipe
        self._live: dict[int, Live] = {}
        self._by_request: dict[Request, Live] = {}
        self._compiler = ThreadPoolExecutor(1, "grammars")
        self._compiling: dict[int, tuple[Submit, Future[None]]] = {}
        self._trial: Trial | None = None
        self._failures = self._failed_steps = 0
        self._read_bandwidth = 0.0
        self._worked = 0.0
        self._closed = False

    def run(self) -> None:
        """Serve until the connection ends. Raises LaunchError where the device is dead."""
        # Beside the first requests: the first structured one would hold all others up for it.
        self._compiler.submit(self._llm.prepare_grammars)
        try:
            while not self._closed:
                busy = self._llm.engine.scheduler.has_work
                for message in self._pipe.receive(0.0 if busy else self._patience()):
                    self._handle(message)
                self._enter_compiled()
                if self._llm.engine.scheduler.has_work:
                    self._step()
                    self._worked = time.monotonic()
                elif self._wants_measure and time.monotonic() - self._worked >= IDLE_AFTER:
                    self._measure()
        except PipeClosedError:
            pass
        finally:
            self._compiler.shutdown(wait=False, cancel_futures=True)
            if self._trial is not None:
                self._trial.close()
            for live in self._live.values():
                self._llm.engine.abort(live.request)

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Abort():
                self._abort(message.keys)
            case Reset():
                self._llm.reset_prefix_cache()
            case Ping():
                self._pipe.send(Pong())
            case Close():
                self._closed = True

    def _submit(self, message: Submit) -> None:
        """Queue a request; one whose grammar has to be compiled first waits for that."""
        structured = message.params.structured
        if structured is None:
            self._enter(message)
            return
        job = self._compiler.submit(self._check_grammar, structured)
        self._compiling[message.key] = (message, job)
        job.add_done_callback(lambda _: self._pipe.wake())

    def _check_grammar(self, structured: Structured) -> None:
        grammars = self._llm.grammars
        self._trial = grammars.trial()  # a client's grammar must not keep this process busy
        grammars.check(structured)

    def _enter_compiled(self) -> None:
        for key in [key for key, (_, job) in self._compiling.items() if job.done()]:
            message, job = self._compiling.pop(key)
            if (error := job.exception()) is not None:
                self._pipe.send(Refused(key, str(error)))
            else:
                self._enter(message)

    def _enter(self, message: Submit) -> None:
        try:
            request = self._llm.request(
                message.prompt_ids,
                message.params,
                priority=message.priority,
                cache_salt=message.cache_salt,
            )
            self._llm.engine.add(request)
        except KernelgenRuntimeError as error:
            self._pipe.send(Refused(message.key, str(error)))
            return
        live = Live(message.key, request)
        self._live[message.key] = self._by_request[request] = live
        self._pipe.send(Accepted([message.key]))

    def _abort(self, keys: list[int]) -> None:
        for key in keys:
            if (compiling := self._compiling.pop(key, None)) is not None:
                compiling[1].cancel()
            if (live := self._live.pop(key, None)) is not None:
                del self._by_request[live.request]
                self._llm.engine.abort(live.request)

    def _step(self) -> None:
        try:
            gained = self._llm.engine.step()
            self._failures = 0
        except LaunchError:
            self._failures += 1
            self._failed_steps += 1
            if self._failures == MOST_FAILURES:
                raise
            gained = [r for r in self._by_request if r.finish_reason is not None]
        updates = [self._told(self._by_request[r]) for r in gained if r in self._by_request]
        self._pipe.send(Stepped(time.perf_counter(), updates, self.load()))

    def _told(self, live: Live) -> Update:
        update = live.update()
        if update.end is not None:
            del self._live[live.key], self._by_request[live.request]
        return update

    def load(self) -> Load:
        """Return the counters as they are now."""
        llm, meter = self._llm, self._llm.engine.meter
        scheduler = llm.engine.scheduler
        pool, prefix = scheduler.cache.pool, scheduler.cache.prefix_counts
        return Load(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._compiling),
            used_pages=pool.pages - 1 - pool.free_pages,
            preemptions=scheduler.preemptions,
            prefix_queries=prefix.queried,
            prefix_hits=prefix.hit,
            decode_steps=meter.steps,
            decode_tokens=meter.tokens,
            decode_seconds=meter.seconds,
            decode_bytes=meter.bytes,
            failed_steps=self._failed_steps,
            marked={mark.value: count for mark, count in llm.watermark_requests.items()},
            read_bandwidth=self._read_bandwidth,
            group_hits={
                group.name: hits
                for group, hits in zip(scheduler.cache.groups, prefix.alone, strict=True)
            },
        )

    def _patience(self) -> float | None:
        """How long to wait for a message when there is nothing to do."""
        return IDLE_AFTER if self._wants_measure else None

    @property
    def _wants_measure(self) -> bool:
        return bool(self._llm.engine.meter.steps) and not self._read_bandwidth

    def _measure(self) -> None:
        """Measure once what this machine can read."""
        llm = self._llm
        found = llm.library.read_bandwidth(MEASURE_SECONDS)
        found = found or llm.device.read_bandwidth(MEASURE_SECONDS)
        self._read_bandwidth = (found or -1.0) * 1e9  # below 0: it cannot be measured
        self._pipe.send(Stepped(time.perf_counter(), [], self.load()))
