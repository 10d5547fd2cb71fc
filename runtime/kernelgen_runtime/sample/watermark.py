"""Owns the Gumbel-max watermark in NumPy: keyed words, noise, and which contexts are fresh.

A marked token is the argmax of logits plus noise that follows from a secret key and the tokens
before it. Whoever has the key can later tell that the noise favoured the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..errors import RequestError, listing, shown

Words = npt.NDArray[np.uint32]
SCOPES = ("none", "single_turn", "all")
MAX_CONTEXT = 64
HISTORY = 8192
"""tokens back in which a context counts as repeated"""

_PADDING = 0xFFFFFFFF
_CONTEXT_TAG = 0x574D4358
_TOKEN_TAG = 0x574D544B


@dataclass(frozen=True)
class Watermark:
    """The key and how contexts are made. The key is a secret: it is in no message and no repr.

    `context_width` generated tokens decide the noise of the next one. A context that was there
    before, in what `deduplicate_contexts` names, gets ordinary noise: "none", "single_turn" (the
    generated tokens) or "all" (prompt too). Raises RequestError where a value is out of range.
    """

    key: int = field(repr=False)
    context_width: int = 4
    deduplicate_contexts: str = "single_turn"

    def __post_init__(self) -> None:
        problems = []
        if not _is_whole(self.key, 0, 2**64 - 1):
            problems.append("key: must be a whole number from 0 to 2**64 - 1")
        if not _is_whole(self.context_width, 1, MAX_CONTEXT):
            problems.append(
                f"context_width: must be from 1 to {MAX_CONTEXT}, is {shown(self.context_width)}"
            )
        if self.deduplicate_contexts not in SCOPES:
            problems.append(
                f"deduplicate_contexts: must be one of {', '.join(SCOPES)}, "
                f"is {shown(self.deduplicate_contexts)}"
            )
        if problems:
            raise RequestError(listing("watermark", problems))


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def philox(counter: Sequence[Words], key: Sequence[Words]) -> tuple[Words, ...]:
    """Return Philox4x32-10 of four counter words under two key words, all arrays of one shape."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first = c0.astype(np.uint64) * np.uint64(0xD2511F53)
        second = c2.astype(np.uint64) * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            _high(second) ^ c1 ^ k0,
            second.astype(np.uint32),
            _high(first) ^ c3 ^ k1,
            first.astype(np.uint32),
        )
        k0, k1 = k0 + np.uint32(0x9E3779B9), k1 + np.uint32(0xBB67AE85)
    return c0, c1, c2, c3


def _high(product: npt.NDArray[np.uint64]) -> Words:
    return (product >> np.uint64(32)).astype(np.uint32)


def context_of(generated: Sequence[int], width: int) -> tuple[int, ...]:
    """Return the last `width` generated tokens, -1 where there were fewer."""
    last = tuple(generated[-width:])
    return (-1,) * (width - len(last)) + last


def context_states(key: int, contexts: npt.NDArray[np.integer]) -> tuple[Words, ...]:
    """Return the four words [n] that `contexts` [n, width] (-1 padded) leave under `key`."""
    count, width = contexts.shape
    low, high = _halves(key, count)
    tokens = contexts.astype(np.int64).astype(np.uint32)
    state = tuple(np.full(count, word, np.uint32) for word in (_CONTEXT_TAG, width, 0, 0))
    for offset in range(0, width, 4):
        inside = range(min(4, width - offset))
        blocks = [tokens[:, offset + i] for i in inside]
        blocks += [np.full(count, _PADDING - i, np.uint32) for i in range(len(blocks), 4)]
        mixed = [word ^ block for word, block in zip(state, blocks, strict=True)]
        state = philox(mixed, (low ^ np.uint32(offset), high))
    return state


def _halves(key: int, count: int) -> tuple[Words, Words]:
    low, high = key & 0xFFFFFFFF, key >> 32
    return np.full(count, low, np.uint32), np.full(count, high, np.uint32)


def words_of(key: int, states: Sequence[Words], tokens: npt.NDArray[np.integer]) -> Words:
    """Return the word of each token [n] after the context whose state [n] stands beside it."""
    s0, s1, s2, s3 = states
    low, high = _halves(key, len(tokens))
    ids = tokens.astype(np.uint32)
    four = philox((ids >> np.uint32(2), s0, s1, s2), (low ^ s3, high ^ np.uint32(_TOKEN_TAG)))
    chosen: Words = np.choose(ids & np.uint32(3), np.stack(four))
    return chosen


def watermark_words(key: int, context: Sequence[int], tokens: npt.NDArray[np.integer]) -> Words:
    """Return the word of each token [n] after one context."""
    states = context_states(key, np.array([context]))
    return words_of(key, [np.full(len(tokens), s[0], np.uint32) for s in states], tokens)


def watermark_uniform(words: Words) -> npt.NDArray[np.float32]:
    """Return ((word >> 8) + 1) / (2**24 + 1), divided in float64 and rounded to float32."""
    return (((words >> np.uint32(8)) + 1.0) / (2.0**24 + 1)).astype(np.float32)


def watermark_noise(
    key: int, context: Sequence[int], tokens: npt.NDArray[np.integer]
) -> npt.NDArray[np.float64]:
    """Return -log(-log u): what a marked choice adds to the logits."""
    u = watermark_uniform(watermark_words(key, context, tokens)).astype(np.float64)
    noise: npt.NDArray[np.float64] = -np.log(-np.log(u))
    return noise


def is_fresh(mark: Watermark, prompt: Sequence[int], generated: Sequence[int]) -> bool:
    """Return whether the context of the next token was not there before, in `mark`'s scope.

    Only the last 8192 tokens of what the scope names are looked through.
    """
    width = mark.context_width
    if mark.deduplicate_contexts == "none" or len(generated) < width:
        return True
    seen = (*prompt, *generated) if mark.deduplicate_contexts == "all" else tuple(generated)
    seen, now = seen[-HISTORY:], tuple(generated[-width:])
    return all(seen[end - width : end] != now for end in range(width, len(seen)))
