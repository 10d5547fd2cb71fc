"""Owns one request's way through its grammar: which tokens may come next, by those that came."""

import numpy as np
import numpy.typing as npt

from ..errors import shown
from .library import Matcher

Bits = npt.NDArray[np.int32]
FAULT = "structured output: "
"""how what ends a request here begins"""


class Guide:
    """A grammar at the place that a request's settled tokens have reached.

    It moves by `take` only, so that steps in flight, preemption and what a cache gives back do not
    touch it: before a choice is made, all tokens before it have settled. What goes wrong ends the
    request, no other: `error` says what.
    """

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.error = ""

    def take(self, token: int) -> str | None:
        """Go on by a token; return the finish reason where nothing may follow, or all is lost."""
        if not self.error and not self.matcher.consume_token(token):
            self.error = FAULT + _reason(self.matcher, token)
        if self.error:
            return "error"
        return "stop" if self.matcher.is_stopped() else None

    def fill(self, bits: Bits) -> None:
        """Write a bit for each token of the vocabulary into `bits` int32 [words], lowest first.

        After a fault every token is let through: the next one that comes ends the request.
        """
        if not self.error:
            self.matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            self.note_fault()
        if self.error:
            bits[:] = -1

    def note_fault(self) -> None:
        """Take over what the grammar has met in a mask that was filled elsewhere."""
        if self.matcher.is_error():
            self.error = FAULT + _reason(self.matcher, None)


def _reason(matcher: Matcher, token: int | None) -> str:
    text = matcher.get_error().strip().split("\n", 1)[0]
    if token is not None and (not text or "doesn't satisfy the grammar" in text):
        # Masks let only the grammar's tokens through: one that is not of it was chosen for want of
        # any other, all of which something else of the request forbids.
        return (
            "no token that the grammar lets through may be chosen: allowed_token_ids or bad_words "
            f"forbid all of them (token {token} came)"
        )
    return shown(text or "no token is left", 200)
