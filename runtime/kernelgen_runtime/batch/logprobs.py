"""Owns log-probabilities as the OpenAI formats have them."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from ..sample.reference import Likelihood

LEAST = -9999.0
"""stands for minus infinity, which JSON cannot say"""
TextOf = Callable[[int], str]


def chat_logprobs(told: Sequence[Likelihood], text_of: TextOf) -> dict[str, Any]:
    """Return those of a chat: one entry a token, with the likeliest beside it."""
    return {
        "content": [
            _entry(one.token, one.logprob, text_of)
            | {"top_logprobs": [_entry(token, value, text_of) for token, value in one.likeliest]}
            for one in told
        ]
    }


def completion_logprobs(told: Sequence[Likelihood], text_of: TextOf) -> dict[str, Any]:
    """Return those of a completion: parallel lists."""
    texts = [text_of(one.token) for one in told]
    return {
        "tokens": texts,
        "token_logprobs": [max(one.logprob, LEAST) for one in told],
        "top_logprobs": [
            {text_of(token): max(value, LEAST) for token, value in one.likeliest} for one in told
        ],
        "text_offset": [0, *accumulate(map(len, texts[:-1]))][: len(texts)],
    }


def _entry(token: int, logprob: float, text_of: TextOf) -> dict[str, Any]:
    text = text_of(token)
    return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(text.encode())}
