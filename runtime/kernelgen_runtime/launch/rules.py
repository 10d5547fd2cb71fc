"""Owns what a slot of `rules` holds of its request: written once when the slot gets it."""

import numpy as np
import numpy.typing as npt

from ..artifact.manifest import ArgsField, RulesSchema
from ..errors import RequestError
from ..sample.reference import Rules
from ..sample.watermark import HISTORY

Ints = npt.NDArray[np.int32]

IN_PROMPT, FORBIDDEN = 1 << 31, 1 << 30
"""bits of a bin; the others count how often the token was generated"""


def rule_words(schema: RulesSchema, rules: Rules) -> Ints:
    """Return the words (int32, from the start of a slot) that a request's rules begin with.

    Raises RequestError where the artifact holds fewer of something than is asked.
    """
    fields = {field.name: field for field in schema.fields}
    params, mark = rules.params, rules.mark
    dense = _is_dense(rules)
    words: Ints = np.zeros(fields["edited" if dense else "bins"].offset, np.int32)
    head = {
        "repetition": params.repetition_penalty,
        "frequency": params.frequency_penalty,
        "presence": params.presence_penalty,
        "free_position": len(rules.prompt) + params.min_tokens if params.min_tokens else 0,
        "dense": int(dense),
        "told": len(params.logprob_token_ids or ()),
        "seen": len(rules.prompt) + len(rules.generated),
    }
    biases = params.logit_bias
    head["biases"] = _fill(words, fields["bias_ids"], list(biases))
    _fill(words, fields["bias_values"], list(biases.values()))
    _fill(words, fields["told_ids"], list(params.logprob_token_ids or ()))
    head["ends"] = _fill(words, fields["end_ids"], sorted(rules.ends) if params.min_tokens else [])
    head["bad_words"] = _fill_words(words, fields["bad_word_ids"], params.bad_word_ids)
    remembered = list(rules.generated)
    if mark is not None:
        if mark.deduplicate_contexts == "all":
            remembered = [*rules.prompt, *remembered]
            head["first_generated"] = len(rules.prompt)
        head["width"] = mark.context_width
        head["deduplicate"] = int(mark.deduplicate_contexts != "none")
        head["key_low"], head["key_high"] = mark.key & 0xFFFFFFFF, mark.key >> 32
    head["remembered"] = len(remembered)
    _remember(words, fields["history"], remembered)
    if params.structured is not None:
        head["guided"] = 1
    for name, value in head.items():
        _set(words, fields[name], [value])
    if dense:
        at = fields["bins"].offset
        words[at:] = _bins(rules, len(words) - at)[: len(words) - at]
    return words


def _is_dense(rules: Rules) -> bool:
    params = rules.params
    penalised = params.repetition_penalty != 1 or params.presence_penalty
    return bool(penalised or params.frequency_penalty or params.allowed_token_ids is not None)


def _set(words: Ints, field: ArgsField, values: list[float] | list[int]) -> None:
    span = words[field.offset : field.offset + len(values)]
    if field.bits == "float32":
        span.view(np.float32)[:] = values
    else:
        span[:] = np.array(values, np.int64).astype(np.uint32).view(np.int32)


def _fill(words: Ints, field: ArgsField, values: list[float] | list[int]) -> int:
    if len(values) > field.shape[0]:
        raise RequestError(
            f"{len(values)} entries of {field.name}, this artifact holds {field.shape[0]}"
        )
    _set(words, field, values)
    return len(values)


def _fill_words(words: Ints, field: ArgsField, bad: tuple[tuple[int, ...], ...]) -> int:
    """Each forbidden token with those before it, the nearest first; -1 behind them."""
    most, longest = field.shape
    if len(bad) > most or any(len(word) > longest for word in bad):
        raise RequestError(f"bad words: this artifact holds {most} of up to {longest} tokens")
    table = words[field.offset : field.offset + most * longest].reshape(field.shape)
    table[:] = -1
    for row, word in zip(table, bad, strict=False):
        row[: len(word)] = word[::-1]
    return len(bad)


def _remember(words: Ints, field: ArgsField, tokens: list[int]) -> None:
    (size,) = field.shape
    assert size == HISTORY
    first = max(0, len(tokens) - size)
    places = np.arange(first, len(tokens)) % size
    words[field.offset + places] = tokens[first:]


def _bins(rules: Rules, words: int) -> Ints:
    """Counts of generated tokens, and the bits of the prompt and of what is not allowed."""
    bins = np.zeros(words, np.uint32)
    ids, counts = np.unique(np.asarray(rules.generated, np.int64), return_counts=True)
    bins[ids] = counts
    bins[np.asarray(rules.prompt, np.int64)] |= np.uint32(IN_PROMPT)
    if rules.params.allowed_token_ids is not None:
        allowed = np.zeros(words, np.bool_)
        allowed[list(rules.params.allowed_token_ids)] = True
        bins[~allowed] |= np.uint32(FORBIDDEN)
    return bins.view(np.int32)
