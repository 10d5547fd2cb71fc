"""Owns what a request may ask of sampling and stopping, checked when it is made."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..errors import RequestError, listing, shown
from .structured import Structured

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_IDS = 64
MAX_LOGPROBS = 20
MAX_BIAS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 16
MAX_CHOICES = 128
INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends. Raises RequestError if wrong.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0, penalties of 0 and a repetition
    penalty of 1 are off; `seed` None is drawn at random; `max_tokens` None means up to the longest
    sequence. `bad_words` are texts, `bad_word_ids` the same as token ids. `logprobs` n asks the n
    most likely tokens of every choice beside the chosen one, `logprob_token_ids` instead certain
    ones, `prompt_logprobs` those of the prompt.
    `structured` binds the text to a schema, an expression or choices.
    Lists count as tuples, one text alone as one of `stop`, a `top_k` of -1 as off.
    `watermarking` None marks where a key is set and it can be done, true insists, false opts out.
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
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    watermarking: bool | None = None
    return_sampling_mask: bool = False
    structured: Structured | None = None

    def __post_init__(self) -> None:
        self._take_other_spellings()
        problems: list[str] = []
        for name, rule, is_good in _RULES:
            value = getattr(self, name)
            if not is_good(value):
                problems.append(f"{name}: {rule}, is {shown(value)}")
        if problems:
            raise RequestError(listing("sampling parameters", problems))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            problems.append(
                f"min_tokens: must be at most max_tokens {self.max_tokens}, is {self.min_tokens}"
            )
        if self.logprobs is not None and self.logprob_token_ids is not None:
            problems.append("logprobs: cannot be asked beside logprob_token_ids")
        if self.return_sampling_mask and not (self.temperature > 0 and self.top_k > 0):
            problems.append("return_sampling_mask: needs a temperature above 0 and a top_k above 0")
        if self.watermarking and self.temperature == 0:
            problems.append("watermarking: a greedy choice cannot be marked; set a temperature")
        if self.structured is not None and self.min_tokens:
            problems.append("min_tokens: cannot be asked of structured output, which ends itself")
        if problems:
            raise RequestError(listing("sampling parameters", problems))

    def _take_other_spellings(self) -> None:
        """What other servers call the same; parameters are hashed, so lists become tuples."""
        for name in _TUPLES:
            value = getattr(self, name)
            if isinstance(value, list):
                inner = (tuple(part) if isinstance(part, list) else part for part in value)
                object.__setattr__(self, name, tuple(inner))
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if isinstance(self.top_k, int) and self.top_k == -1:
            object.__setattr__(self, "top_k", 0)

    @property
    def tells_logprobs(self) -> bool:
        """Whether log-probabilities of generated tokens are asked."""
        return self.logprobs is not None or self.logprob_token_ids is not None

    @property
    def changes_logits(self) -> bool:
        """Whether logits are changed before the choice: penalties, biases, forbidden tokens."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or bool(self.logit_bias or self.bad_words or self.bad_word_ids or self.min_tokens)
            or self.allowed_token_ids is not None
            or self.structured is not None
        )

    def choice(self, index: int, seed: int) -> "SamplingParams":
        """Return the parameters of the choice `index` of n: one choice, whose seed is seed + index.

        `seed` is the request's own, or the one drawn for it.
        """
        own = (seed + index + 2**63) % 2**64 - 2**63
        return replace(self, n=1, seed=own)

    def check_vocabulary(self, vocab: int) -> None:
        """Raise RequestError where a token id is not of a vocabulary of `vocab` tokens."""
        named = {
            "stop_token_ids": self.stop_token_ids,
            "allowed_token_ids": self.allowed_token_ids or (),
            "logit_bias": tuple(self.logit_bias),
            "logprob_token_ids": self.logprob_token_ids or (),
            "bad_word_ids": tuple(i for word in self.bad_word_ids for i in word),
        }
        problems = [
            f"{name}: token ids must be from 0 to {vocab - 1}, one is {shown(bad[0])}"
            for name, ids in named.items()
            if (bad := [i for i in ids if i >= vocab])
        ]
        if problems:
            raise RequestError(listing("sampling parameters", problems))


def _whole(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    )


def _real(low: float, high: float, above: bool = False) -> Callable[[object], bool]:
    """From `low`, or `above` it, to `high`."""

    def is_good(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return low <= value <= high and math.isfinite(value) and not (above and value == low)

    return is_good


def _optional(is_good: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or is_good(value)


def _texts(most: int) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, tuple)
        and len(value) <= most
        and all(isinstance(text, str) and 0 < len(text) <= MAX_STOP_LENGTH for text in value)
    )


_is_id = _whole(0, INT32_MAX)


def _ids(least: int, most: int) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, tuple) and least <= len(value) <= most and all(map(_is_id, value))
    )


def _bias(value: object) -> bool:
    if not isinstance(value, Mapping) or len(value) > MAX_BIAS:
        return False
    is_bias = _real(-100.0, 100.0)
    return all(_is_id(token) and is_bias(bias) for token, bias in value.items())


def _sequences(value: object) -> bool:
    is_word = _ids(1, MAX_BAD_WORD_TOKENS)
    return isinstance(value, tuple) and len(value) <= MAX_BAD_WORDS and all(map(is_word, value))


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _bond(value: object) -> bool:
    return isinstance(value, Structured)


_TUPLES = (
    "stop", "stop_token_ids", "allowed_token_ids", "bad_words", "bad_word_ids", "logprob_token_ids",
)  # fmt: skip
_TRUTH = "must be true or false"
_OF_TEXT = f"strings of 1 to {MAX_STOP_LENGTH} characters"
_RULES: tuple[tuple[str, str, Callable[[object], bool]], ...] = (
    ("max_tokens", "must be 1 or more, or none", _optional(_whole(1, INT32_MAX))),
    ("temperature", "must be from 0 to 1e6", _real(0.0, 1e6)),
    ("top_k", f"must be from 0 (off) to {INT32_MAX}", _whole(0, INT32_MAX)),
    ("top_p", "must be above 0 and at most 1", _real(0.0, 1.0, above=True)),
    ("min_p", "must be from 0 to 1", _real(0.0, 1.0)),
    ("seed", "must be a 64-bit integer", _optional(_whole(-(2**63), 2**63 - 1))),
    ("presence_penalty", "must be from -2 to 2", _real(-2.0, 2.0)),
    ("frequency_penalty", "must be from -2 to 2", _real(-2.0, 2.0)),
    ("repetition_penalty", "must be from 0.01 to 100", _real(0.01, 100.0)),
    ("logit_bias", f"must map up to {MAX_BIAS} token ids to numbers from -100 to 100", _bias),
    (
        "allowed_token_ids",
        "must be token ids, not empty, or none",
        _optional(_ids(1, INT32_MAX)),
    ),
    (
        "bad_words",
        f"must be up to {MAX_BAD_WORDS} {_OF_TEXT}",
        _texts(MAX_BAD_WORDS),
    ),
    (
        "bad_word_ids",
        f"must be up to {MAX_BAD_WORDS} sequences of 1 to {MAX_BAD_WORD_TOKENS} token ids",
        _sequences,
    ),
    ("min_tokens", "must be 0 or more", _whole(0, INT32_MAX)),
    ("logprobs", f"must be from 0 to {MAX_LOGPROBS}, or none", _optional(_whole(0, MAX_LOGPROBS))),
    (
        "logprob_token_ids",
        f"must be 1 to {MAX_LOGPROBS} token ids, or none",
        _optional(_ids(1, MAX_LOGPROBS)),
    ),
    (
        "prompt_logprobs",
        f"must be from 0 to {MAX_LOGPROBS}, or none",
        _optional(_whole(0, MAX_LOGPROBS)),
    ),
    ("n", f"must be from 1 to {MAX_CHOICES}", _whole(1, MAX_CHOICES)),
    (
        "stop",
        f"must be up to {MAX_STOPS} {_OF_TEXT}",
        _texts(MAX_STOPS),
    ),
    (
        "stop_token_ids",
        f"must be up to {MAX_STOP_IDS} token ids",
        _ids(0, MAX_STOP_IDS),
    ),
    ("ignore_eos", _TRUTH, _flag),
    ("include_stop_str_in_output", _TRUTH, _flag),
    ("skip_special_tokens", _TRUTH, _flag),
    ("watermarking", "must be true, false or none", _optional(_flag)),
    ("return_sampling_mask", _TRUTH, _flag),
    ("structured", "must be a Structured, or none", _optional(_bond)),
)
