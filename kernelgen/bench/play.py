"""Owns driving a ready model through a case and taking the time of every step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kernelgen.bench.case import Case, prompts
from kernelgen.bench.series import Series, quantile
from kernelgen.core.errors import CheckFailed, UsageError


@dataclass(frozen=True)
class Played:
    """One run of a case, in seconds: from the first launch until every request has its first
    token, and the ends of the steps in which every request gained one more.
    """

    first_tokens: float
    ends: tuple[float, ...]

    @property
    def intervals(self) -> tuple[float, ...]:
        """Time of each whole decode step.

        The last one is left out: no step was prepared behind it, so the host had less to do.
        """
        return tuple(b - a for a, b in pairwise(self.ends))[:-1]


@dataclass(frozen=True)
class StepFigures:
    """`step_us`: mean step of each round, sampling and the runtime's own work included.

    `p90_us`: nine of ten single steps took no longer. `prefill_ms`: until all requests have their
    first token. `tokens_per_second`: of the whole batch while decoding.
    """

    step_us: Series
    p90_us: float
    prefill_ms: Series
    tokens_per_second: float


def play(llm: Any, rows: Sequence[Sequence[int]], tokens: int) -> Played:
    """Generates `tokens` tokens, greedily, for all prompts at once.

    `CheckFailed` where a request ends with an error: what a step of NaN takes says nothing.
    """
    from kernelgen_runtime.sample.params import SamplingParams

    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    generations = [llm.stream(list(row), params) for row in rows]
    by_request = {generation.request: generation for generation in generations}
    start, ends, open_requests = time.perf_counter(), [], len(generations)
    for generation in generations:
        generation.begin()
    try:
        while open_requests:
            gained = llm.engine.step()
            now = time.perf_counter()
            for request in gained:
                by_request[request].advance()
                open_requests -= by_request[request].is_finished
            if len(gained) == len(generations):
                ends.append(now)
    finally:
        for generation in generations:
            generation.abort()
        llm.engine.drain()
    check_none_failed([generation.request for generation in generations])
    first = max(generation.request.timings.first_token for generation in generations)
    return Played(first - start, tuple(end - start for end in ends if end >= first))


def check_none_failed(requests: Sequence[Any]) -> None:
    """`CheckFailed` where any of the runtime's requests has ended with an error."""
    failed = [request for request in requests if request.finish_reason == "error"]
    if failed:
        told = failed[0].error or "its step failed"
        raise CheckFailed(
            f"{len(failed)} of {len(requests)} requests ended with an error, the first: {told}",
            where="bench",
            hint="run `kernelgen verify BUILD`",
        )


def measure(llm: Any, case: Case, rounds: int) -> StepFigures:
    """Medians over `rounds` runs of a case, after one that warms up.

    `UsageError` where the cache does not hold all requests at once.
    """
    rows = prompts(case, llm.manifest.vocab)
    play(llm, rows, 4)
    played = [play(llm, rows, case.tokens) for _ in range(rounds)]
    # Requests whose prompt came first are done first: those steps are not of the whole batch.
    if any(2 * len(run.ends) < case.tokens for run in played):
        raise UsageError(
            f"the cache does not hold {case.words} at once",
            where="bench",
            hint="lower --batch or --prompt",
        )
    steps = [sum(run.intervals) / len(run.intervals) for run in played]
    single = [interval for run in played for interval in run.intervals]
    series = Series.of(steps, 1e6)
    return StepFigures(
        step_us=series,
        p90_us=float(f"{quantile(single, 0.9) * 1e6:.6g}"),
        prefill_ms=Series.of([run.first_tokens for run in played], 1e3),
        tokens_per_second=float(f"{case.batch / series.median * 1e6:.6g}"),
    )
