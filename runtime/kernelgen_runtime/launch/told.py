"""Owns bringing log-probabilities and kept sets from a step's answer to its requests."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..artifact.manifest import Plan
from ..memory.cache import CacheTables
from ..schedule.request import Request
from ..schedule.step import Step
from .details import Answer, Details, kept_ids, likelihood_of
from .runner import Runner


def note_details(requests: Sequence[Request], answer: Answer, vocab: int) -> None:
    """Add to the `requests` of the asked logit rows, in order, what they have asked beside ids."""
    if answer.logprobs is not None:
        for request, row in zip(requests, answer.logprobs, strict=True):
            if request.params.tells_logprobs:
                count = len(request.params.logprob_token_ids or ()) or request.params.logprobs or 0
                request.logprobs.append(likelihood_of(row, count))
    if answer.masks is not None:
        for request, row in zip(requests, answer.masks, strict=True):
            if request.params.return_sampling_mask:
                request.masks.append(kept_ids(row, vocab))


def tell_prompts(
    runner: Runner, step: Step, plan: Plan, rows: Sequence[int], tables: CacheTables
) -> None:
    """Run `step` without choosing and note what it says of the prompt tokens of request rows.

    The logits buffer holds some rows only: the step runs once for each piece, writing the same
    keys and values to the same places.
    """
    capacity = min(runner.logit_rows, plan.logit_rows)
    wanted = list(_prompt_tokens(step, rows))
    for first in range(0, len(wanted), capacity):
        piece = wanted[first : first + capacity]
        args = runner.args()
        args.write(step, plan, tables)
        counts = [request.params.prompt_logprobs or 0 for _, request, _ in piece]
        details = Details(
            refine=False,
            logprobs=np.array(counts, np.int32),
            tokens=np.array([request.tokens[place] for _, request, place in piece], np.int32),
        )
        args.ask([row for row, _, _ in piece], -1, details=details)
        answer = runner.start(plan, len(piece))()
        assert answer.logprobs is not None
        for (_, request, place), count, values in zip(piece, counts, answer.logprobs, strict=True):
            if len(request.prompt_logprobs) == place - 1:  # once, however often it is computed
                request.prompt_logprobs.append(likelihood_of(values, count))


def _prompt_tokens(step: Step, rows: Sequence[int]) -> Iterator[tuple[int, Request, int]]:
    """Yield (token row, request, position of the prompt token behind it) of request rows."""
    starts = np.concatenate([[0], step.counts.cumsum()]).tolist()
    for i in rows:
        row = step.rows[i]
        stop = min(row.start + row.count, row.request.prompt_tokens - 1)
        for position in range(row.start, stop):
            yield starts[i] + position - row.start, row.request, position + 1
