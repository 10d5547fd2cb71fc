"""Owns the state of one request: its tokens, how far it is, and when it ends."""

import time
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from ..sample.params import SamplingParams
from ..sample.reference import Likelihood
from ..sample.watermark import Watermark

NO_CHOICE = -2
"""what a library gives instead of an id where a logit of the row is NaN"""


class Status(StrEnum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass
class Timings:
    """Seconds of `time.perf_counter` at which things happened; 0 where they have not."""

    arrived: float = field(default_factory=time.perf_counter)
    scheduled: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0


@dataclass(eq=False)
class Request:
    """One sequence. `tokens` holds what is known: the prompt and every id that came back.

    There is no prefill and no decode: `scheduled` counts tokens handed to steps, `settled` those
    of finished steps, `pending` the ids asked of steps in flight. `epoch` changes with each
    preemption, so that a result of the old timeline never moves the counters of the new one.
    """

    id: int
    tokens: list[int]
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    length_limit: int
    all_logits: bool = False
    prompt_tokens: int = 0
    status: Status = Status.WAITING
    slot: int = -1
    scheduled: int = 0
    settled: int = 0
    pending: int = 0
    epoch: int = 0
    preemptions: int = 0
    finish_reason: str | None = None
    error: str = ""
    """why it has ended with the finish reason "error", where that is its own doing"""
    stop_reason: int | str | None = None
    timings: Timings = field(default_factory=Timings)
    mark: Watermark | None = None
    """the key that its choices are marked with"""
    logprobs: list[Likelihood] = field(default_factory=list)
    """of generated tokens, where they were asked; those of prompt tokens from the second on"""
    prompt_logprobs: list[Likelihood] = field(default_factory=list)
    masks: list[npt.NDArray[np.int32]] = field(default_factory=list)
    """ids that each choice was among"""

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    @property
    def known(self) -> int:
        """Tokens of the sequence, ids that are still in flight included."""
        return len(self.tokens) + self.pending

    @property
    def todo(self) -> int:
        """Tokens to compute next; the last token a request may have is never computed."""
        return self.known - self.scheduled if self.known < self.length_limit else 0

    @property
    def output_ids(self) -> list[int]:
        """Ids generated so far."""
        return self.tokens[self.prompt_tokens :]

    def append(self, token: int) -> str | None:
        """Take a sampled id; return the finish reason where it is the last."""
        if not self.timings.first_token:
            self.timings.first_token = time.perf_counter()
        self.tokens.append(token)
        may_end = len(self.tokens) - self.prompt_tokens > self.params.min_tokens
        if may_end and token in self.stop_ids:
            self.stop_reason = token if token in self.params.stop_token_ids else None
            return "stop"
        return "length" if len(self.tokens) >= self.length_limit else None
