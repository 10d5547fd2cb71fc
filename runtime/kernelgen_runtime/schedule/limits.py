"""Owns what one step and one request may take, and who goes first."""

from dataclasses import dataclass
from enum import StrEnum


class Policy(StrEnum):
    """Who goes first: whoever came first, or whoever has the lowest priority number."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@dataclass(frozen=True)
class Limits:
    """`chunk_tokens` caps one request in one step; `steps_in_flight` is 1 or, asynchronous, 2.
    `told_tokens` caps one whose prompt tokens have their logits told: a step has that many rows of
    them.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    chunk_tokens: int | None = None
    steps_in_flight: int = 1
    policy: Policy = Policy.FCFS
    told_tokens: int | None = None

    @property
    def most_of_one(self) -> int:
        """Most tokens of one request in one step."""
        return min(self.chunk_tokens or self.max_num_batched_tokens, self.max_num_batched_tokens)

    @property
    def most_of_told(self) -> int:
        """Most tokens in one step of a request whose prompt tokens have their logits told."""
        return min(self.told_tokens or self.most_of_one, self.most_of_one)

    @property
    def in_flight_tokens(self) -> int:
        """Most tokens of one request computed but not settled."""
        return min(self.most_of_one * self.steps_in_flight, self.max_model_len)
