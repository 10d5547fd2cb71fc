"""Owns the detector: how likely a text has as much of a key's noise by chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .watermark import Watermark, context_states, watermark_uniform, words_of

THRESHOLD = 0.01


@dataclass(frozen=True)
class Detection:
    """`score` is the sum over scored tokens, `p_value` the chance of as much without the mark.

    A text of few or certain tokens carries little of a mark: a large p-value then says nothing.
    """

    score: float
    p_value: float
    num_scored_tokens: int
    num_tokens: int
    threshold: float = THRESHOLD

    mean_needed: float = math.inf
    """score a scored token that would reach the threshold; 1 is what chance gives"""

    @property
    def is_watermarked(self) -> bool:
        """Whether the p-value is at most the threshold."""
        return self.p_value <= self.threshold

    def __str__(self) -> str:
        """The verdict in a line, with how much there was to judge by."""
        verdict = "watermarked" if self.is_watermarked else "no watermark found"
        if not self.num_scored_tokens:
            return f"{verdict}, no tokens to score"
        mean = self.score / self.num_scored_tokens
        return (
            f"{verdict}, p {self.p_value:.3g}; {mean:.3f} a token over {self.num_scored_tokens} of "
            f"{self.num_tokens} tokens, {self.mean_needed:.3f} are needed (1 by chance)"
        )


def detect(tokens: Sequence[int], mark: Watermark, threshold: float = THRESHOLD) -> Detection:
    """Score generated `tokens` (the prompt left out) against a key; each context counts once.

    For every token -log1p(-u) with its own u; without a mark their sum follows Gamma(n, 1).
    """
    width = mark.context_width
    ids = np.asarray(tokens, np.int64)
    padded = np.concatenate([np.full(width, -1), ids])
    contexts = np.lib.stride_tricks.sliding_window_view(padded, width)[: len(ids)]
    if not len(ids):
        return Detection(0.0, 1.0, 0, 0, threshold)
    _, first = np.unique(contexts, axis=0, return_index=True)
    states = context_states(mark.key, contexts[first])
    u = watermark_uniform(words_of(mark.key, states, ids[first])).astype(np.float64)
    total = math.fsum((-np.log1p(-u)).tolist())
    count, needed = len(first), _mean_needed(len(first), threshold)
    return Detection(total, gamma_tail(count, total), count, len(ids), threshold, needed)


def _mean_needed(count: int, threshold: float) -> float:
    """Return the mean of `count` scores at which the p-value is `threshold`; inf where none is."""
    if threshold <= 0:
        return math.inf
    low, high = 0.0, 1.0
    while gamma_tail(count, count * high) > threshold:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        above = gamma_tail(count, count * middle) > threshold
        low, high = (middle, high) if above else (low, middle)
    return high


def gamma_tail(count: int, total: float) -> float:
    """Return the chance that `count` standard exponentials sum to at least `total`; 1 for none."""
    if count == 0 or total <= 0:
        return 1.0
    terms = [i * math.log(total) - math.lgamma(i + 1) for i in range(count)]
    largest = max(terms)
    log_sum = largest + math.log(math.fsum(math.exp(term - largest) for term in terms))
    return min(1.0, math.exp(log_sum - total))
