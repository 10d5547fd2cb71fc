"""Owns bringing log-probabilities and kept sets from a step's answer to its requests."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..schedule.request import Request
from ..schedule.step import Step
from .details import Answer, Details, kept_ids, likelihood_of


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


@dataclass(frozen=True)
class PromptRows:
    """Prompt tokens that a step tells of: the token row before each, whose it is, its position."""

    rows: tuple[int, ...] = ()
    requests: tuple[Request, ...] = ()
    places: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def cut(self, count: int) -> tuple["PromptRows", "PromptRows"]:
        """Return the first `count` of them, and the others."""
        rows, requests, places = self.rows, self.requests, self.places
        first = PromptRows(rows[:count], requests[:count], places[:count])
        return first, PromptRows(rows[count:], requests[count:], places[count:])

    def details(self, others: int, wanted: Details | None) -> Details:
        """Return what is asked of these rows and, behind them, what is `wanted` of `others`."""
        wanted = wanted or Details(refine=False)
        counts = [request.params.prompt_logprobs or 0 for request in self.requests]
        tokens = [r.tokens[place] for r, place in zip(self.requests, self.places, strict=True)]
        nothing: npt.NDArray[np.int32] = np.full(others, -1, np.int32)
        masks = wanted.masks
        return replace(
            wanted,
            logprobs=_joined(counts, nothing if wanted.logprobs is None else wanted.logprobs),
            tokens=_joined(tokens, nothing),
            masks=None if masks is None else _joined([0] * len(self), masks),
        )

    def note(self, answer: Answer) -> Answer:
        """Take what an answer says of these rows; return the rest of it."""
        count = len(self)
        if not count:
            return answer
        assert answer.logprobs is not None
        for request, place, row in zip(self.requests, self.places, answer.logprobs, strict=False):
            if len(request.prompt_logprobs) == place - 1:  # once, however often it is computed
                told = likelihood_of(row, request.params.prompt_logprobs or 0)
                request.prompt_logprobs.append(told)
        masks = None if answer.masks is None else answer.masks[count:]
        return Answer(answer.ids[count:], answer.logprobs[count:], masks)


def prompt_rows(step: Step, of: Sequence[int]) -> PromptRows:
    """Return the prompt tokens that request rows `of` tell of in `step`."""
    starts = np.concatenate([[0], step.counts.cumsum()]).tolist()
    found = []
    for i in of:
        row = step.rows[i]
        stop = min(row.start + row.count, row.request.prompt_tokens - 1)
        for position in range(row.start, stop):
            found.append((starts[i] + position - row.start, row.request, position + 1))
    return PromptRows(*zip(*found, strict=True)) if found else PromptRows()


def _joined(first: Sequence[int], rest: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.concatenate([np.array(first, np.int32), rest])
