"""Owns what a request may ask of sampling and stopping, checked when it is made."""

import math
from dataclasses import dataclass

from ..errors import RequestError, listing, shown

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends. Raises RequestError if wrong.

    `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off; `seed` None is drawn at random;
    `max_tokens` None means up to the longest sequence.
    """

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        problems: list[str] = []

        def check(good: bool, name: str, rule: str) -> None:
            if not good:
                problems.append(f"{name}: {rule}, is {shown(getattr(self, name))}")

        if self.max_tokens is not None:
            check(_whole(self.max_tokens, 1, INT32_MAX), "max_tokens", "must be 1 or more")
        check(_real(self.temperature, 0.0, 1e6), "temperature", "must be from 0 to 1e6")
        check(_whole(self.top_k, 0, INT32_MAX), "top_k", "must be 0 (off) or more")
        good_top_p = _real(self.top_p, 0.0, 1.0) and self.top_p > 0
        check(good_top_p, "top_p", "must be above 0 and at most 1")
        if self.seed is not None:
            check(_whole(self.seed, -(2**63), 2**63 - 1), "seed", "must be a 64-bit integer")
        check(_stops(self.stop), "stop", f"must be up to {MAX_STOPS} strings, none empty")
        ids = self.stop_token_ids
        good_ids = isinstance(ids, tuple) and all(_whole(i, 0, INT32_MAX) for i in ids)
        check(good_ids, "stop_token_ids", "must be a tuple of token ids")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            check(isinstance(getattr(self, name), bool), name, "must be true or false")
        if problems:
            raise RequestError(listing("sampling parameters", problems))


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _real(value: object, low: float, high: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return low <= value <= high and math.isfinite(value)


def _stops(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) <= MAX_STOPS
        and all(isinstance(text, str) and 0 < len(text) <= MAX_STOP_LENGTH for text in value)
    )
