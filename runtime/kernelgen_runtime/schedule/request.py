"""Owns the state of one request: its tokens, where it is in its life, and when it ends."""

import time
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from ..errors import RequestError, shown
from ..guide.guide import Guide
from ..memory.chain import Chain
from ..sample.params import SamplingParams
from ..sample.reference import Likelihood
from ..sample.watermark import Watermark

MAX_PRIORITY = 2**31 - 1
MAX_SALT = 1024
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

    How far it is computed is counted by slot (`SlotCounts`). `draining` counts ids that are still
    in flight from a slot that it has left; they belong to it, but no counter moves by them.
    `needs_all_rows`: every prompt token must be computed, whatever prefix is known.
    """

    id: int
    tokens: list[int]
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    length_limit: int
    needs_all_rows: bool = False
    priority: int = 0
    cache_salt: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """tokens of the prompt that were known when it was first scheduled"""
    status: Status = Status.WAITING
    slot: int = -1
    draining: int = 0
    preemptions: int = 0
    arrival: int = 0
    """number in the order in which requests were added"""
    chain: Chain | None = None
    finish_reason: str | None = None
    error: str = ""
    """why it has ended with the finish reason "error", where that is its own doing"""
    stop_reason: int | str | None = None
    timings: Timings = field(default_factory=Timings)
    mark: Watermark | None = None
    """the key that its choices are marked with"""
    guide: Guide | None = None
    """what its text is bound to, as far as its tokens have come back"""
    logprobs: list[Likelihood] = field(default_factory=list)
    """of generated tokens, where they were asked; those of prompt tokens from the second on"""
    prompt_logprobs: list[Likelihood] = field(default_factory=list)
    masks: list[npt.NDArray[np.int32]] = field(default_factory=list)
    """ids that each choice was among"""

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    @property
    def output_ids(self) -> list[int]:
        """Ids generated so far."""
        return self.tokens[self.prompt_tokens :]

    def append(self, token: int) -> str | None:
        """Take a sampled id; return the finish reason where it is the last."""
        if not self.timings.first_token:
            self.timings.first_token = time.perf_counter()
        tokens = self.tokens
        tokens.append(token)
        if token in self.stop_ids and len(tokens) - self.prompt_tokens > self.params.min_tokens:
            self.stop_reason = token if token in self.params.stop_token_ids else None
            return "stop"
        if self.guide is not None and (reason := self.guide.take(token)) is not None:
            self.error = self.guide.error
            return reason
        return "length" if len(tokens) >= self.length_limit else None


def check_rank(priority: int) -> int:
    """Return a priority that is one. Raises RequestError."""
    if type(priority) is int and abs(priority) <= MAX_PRIORITY:
        return priority
    raise RequestError(
        f"priority must be from {-MAX_PRIORITY} to {MAX_PRIORITY}, is {shown(priority)}"
    )


def check_salt(salt: str | None) -> str | None:
    """Return a cache salt that is one. Raises RequestError."""
    if salt is None or (isinstance(salt, str) and 0 < len(salt) <= MAX_SALT):
        return salt
    raise RequestError(f"cache_salt must be 1 to {MAX_SALT} characters, is {shown(salt)}")
