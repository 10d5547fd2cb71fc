"""Owns logits of given tokens: prompt and continuation are fed as they are, none is sampled."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .asked import read_ids
from .errors import RequestError
from .launch.program import Program
from .sample.params import SamplingParams
from .schedule.request import Request
from .schedule.scheduler import Scheduler
from .schedule.step import Step

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A prompt, and ids that are fed one at a time after it."""

    prompt_ids: tuple[int, ...]
    fed_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Score:
    """Logits after each prompt token [P, V] and after each fed token [N, V]."""

    prefill_logits: Logits
    decode_logits: Logits


def score(scheduler: Scheduler, program: Program, vocab: int, cases: Sequence[Case]) -> list[Score]:
    """Run all `cases` in one batch through the ordinary scheduler. Raises RequestError."""
    longest = scheduler.limits.max_model_len
    cases = [_checked(f"case {i}", case, vocab, longest) for i, case in enumerate(cases)]
    requests = [_request(i, case) for i, case in enumerate(cases)]
    logits = [np.empty((len(c.prompt_ids) + len(c.fed_ids), vocab), np.float32) for c in cases]
    for request in requests:
        scheduler.add(request)
    try:
        while any(request.finish_reason is None for request in requests):
            step = scheduler.schedule()
            assert step is not None, "unfinished requests always have something to compute"
            try:
                _collect(step, program, requests, logits)
            except BaseException:
                scheduler.fail(step)
                raise
            scheduler.settle(step, [_next_id(row.request, cases) for row in step.rows])
    finally:
        for request in requests:
            if request.finish_reason is None:
                scheduler.finish(request, "error")
    return [
        Score(values[: len(case.prompt_ids)], values[len(case.prompt_ids) :])
        for case, values in zip(cases, logits, strict=True)
    ]


def _collect(
    step: Step, program: Program, requests: Sequence[Request], logits: Sequence[Logits]
) -> None:
    """Scatter the step's logits: token rows stand in the order of the step's rows."""
    places = [
        (requests.index(row.request), position)
        for row in step.rows
        for position in range(row.start, row.start + row.count)
    ]
    for first, piece in program.run_logits(step):
        for i, values in enumerate(piece):
            case, position = places[first + i]
            logits[case][position] = values


def _next_id(request: Request, cases: Sequence[Case]) -> int:
    """Return the id that stands in for the sampled one: the next fed id, 0 after the last."""
    fed = cases[request.id].fed_ids
    at = len(request.tokens) - request.prompt_tokens
    return fed[at] if at < len(fed) else 0


def _request(number: int, case: Case) -> Request:
    # One id more than is fed: the last fed token is computed because another is asked after it.
    limit = len(case.prompt_ids) + len(case.fed_ids) + 1
    params = SamplingParams(temperature=0.0)
    prompt = list(case.prompt_ids)
    return Request(number, prompt, params, 0, frozenset(), limit, needs_all_rows=True)


def _checked(name: str, case: Case, vocab: int, max_model_len: int) -> Case:
    prompt = read_ids(case.prompt_ids, vocab, f"{name}: prompt")
    fed = read_ids(case.fed_ids, vocab, f"{name}: fed", least=0)
    if len(prompt) + len(fed) > max_model_len:
        raise RequestError(
            f"{name}: {len(prompt)} prompt and {len(fed)} fed tokens; max_model_len "
            f"{max_model_len} in all are allowed"
        )
    return Case(tuple(prompt), tuple(fed))
