"""Owns fitting a request's parameters to a model: its vocabulary, its tokenizer, its artifact."""

from dataclasses import replace
from typing import Protocol

from ..errors import RequestError
from .params import SamplingParams


class Encoder(Protocol):
    """Turns text into ids."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the ids of `text`."""


def with_bad_word_ids(params: SamplingParams, encoder: Encoder) -> SamplingParams:
    """Return `params` with its bad words as token ids, at the start of a text and inside one.

    Raises RequestError where they are too many or too long.
    """
    if not params.bad_words:
        return params
    found = dict.fromkeys(params.bad_word_ids)
    for word in params.bad_words:
        for text in (word.lstrip(" "), " " + word.lstrip(" ")):
            if ids := tuple(encoder.encode(text, add_special_tokens=False)):
                found[ids] = None
    return replace(params, bad_words=(), bad_word_ids=tuple(found))


def check_demands(
    params: SamplingParams, vocab: int, has_rules: bool, is_marked: bool, has_guides: bool = True
) -> None:
    """Raise RequestError for ids outside the vocabulary and for what the artifact lacks."""
    params.check_vocabulary(vocab)
    wanted = {
        "penalties, logit_bias, allowed_token_ids, bad words or min_tokens": params.changes_logits,
        "min_p": params.min_p > 0,
        "logprobs": params.tells_logprobs or params.prompt_logprobs is not None,
        "return_sampling_mask": params.return_sampling_mask,
        "watermarking": is_marked,
    }
    if params.structured is not None and not has_guides:
        raise RequestError("this artifact was built without structured output; build it again")
    missing = [name for name, is_wanted in wanted.items() if is_wanted]
    if missing and not has_rules:
        raise RequestError(f"this artifact was built without {missing[0]}; build the model again")
