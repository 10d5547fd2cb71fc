"""Owns the layout of `rules`: what a slot holds of a request whose logits change or are marked."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernelgen.codegen.step_args import ArgsField

MAX_BIAS = 1024
MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS = 128, 16
MAX_ENDS = 128
HISTORY = 8192
"""tokens that a slot remembers, a power of two: entry e at e mod HISTORY"""

HEAD = (
    "repetition",
    "frequency",
    "presence",
    "free_position",
    "biases",
    "bad_words",
    "ends",
    "dense",
    "told",
    "seen",
    "remembered",
    "first_generated",
    "width",
    "deduplicate",
    "key_low",
    "key_high",
    "marked",
    "state0",
    "state1",
    "state2",
    "state3",
    "guided",
)
"""words at the start of a slot, in their order; docs/abi.md says what each means"""
FLOATS = ("repetition", "frequency", "presence")
"""words of the head that hold float bits"""

LOGPROB_WORDS = 48
"""words of a row of `logprobs`: rank, log-probability, id, 20 ids, 20 log-probabilities"""
MAX_LOGPROBS = 20
MASK_IDS = 2048
"""kept ids that a row of `masks` lists; more than that are bits"""


@dataclass(frozen=True)
class RulesLayout:
    """`words` of a slot, and where its fields start."""

    words: int
    fields: tuple[ArgsField, ...]

    def offset(self, name: str) -> int:
        """Word at which a field starts."""
        return next(f.offset for f in self.fields if f.name == name)


def rules_layout(vocabulary: int, scratch_words: int = 0) -> RulesLayout:
    """The fields of docs/abi.md in their order. `scratch_words`: what a GPU's choice needs."""
    shapes: list[tuple[str, tuple[int, ...], str]] = [
        *((name, (1,), "float32" if name in FLOATS else "int32") for name in HEAD),
        ("bias_ids", (MAX_BIAS,), "int32"),
        ("bias_values", (MAX_BIAS,), "float32"),
        ("end_ids", (MAX_ENDS,), "int32"),
        ("told_ids", (MAX_LOGPROBS,), "int32"),
        ("bad_word_ids", (MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), "int32"),
        ("history", (HISTORY,), "int32"),
        ("bins", (vocabulary,), "int32"),
        ("edited", (vocabulary,), "float32"),
        ("allowed", (-(-vocabulary // 32),), "int32"),
    ]
    if scratch_words:
        shapes.append(("scratch", (scratch_words,), "int32"))
    fields, at = [], 0
    for name, shape, bits in shapes:
        if name not in HEAD:
            at = -(-at // 32) * 32
        fields.append(ArgsField(name, at, shape, bits))
        at += prod(shape)
    return RulesLayout(-(-at // 32) * 32, tuple(fields))


def mask_words(vocabulary: int) -> int:
    """Words of a row of `masks`: a count, then ids, or a bit for each token."""
    return -(-(1 + max(MASK_IDS, -(-vocabulary // 32))) // 32) * 32
