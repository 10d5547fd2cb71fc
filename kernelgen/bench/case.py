"""Owns what is measured: a batch with a prompt and output length, and whether the build has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelgen.core.errors import ProblemList, UsageError, quote

LEAST_TOKENS = 8
"""output tokens below which first and last step would be most of what is measured"""


@dataclass(frozen=True)
class Case:
    """`batch` requests of `prompt` tokens each, of which every one generates `tokens` tokens."""

    batch: int
    prompt: int
    tokens: int

    @property
    def length(self) -> int:
        """Tokens of a sequence at its end."""
        return self.prompt + self.tokens

    @property
    def context(self) -> int:
        """Cache entries that a decode step reads of each request, half-way through."""
        return self.prompt + self.tokens // 2

    @property
    def words(self) -> str:
        """ "batch 8, 128 in, 64 out"."""
        return f"batch {self.batch}, {self.prompt} in, {self.tokens} out"


def parse_batches(text: str) -> tuple[int, ...]:
    """ "1,8,32" as numbers, each once, in order; `UsageError` for anything else."""
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UsageError(
            f"is {quote(text)}", where="--batch", allowed="whole numbers from 1 with commas: 1,8,32"
        )
    return tuple(dict.fromkeys(found))


def check_cases(cases: Sequence[Case], sizes: Sequence[int], longest: int) -> None:
    """`UsageError` naming every case that a build with these decode sizes cannot run.

    `longest` is the most tokens of one sequence.
    """
    problems = ProblemList("bench")
    for case in cases:
        if case.batch > max(sizes):
            ladder = ", ".join(map(str, sorted(sizes)))
            problems.add(
                f"is {case.batch}, beyond the largest decode plan",
                where="--batch",
                allowed=f"1 to {max(sizes)} (plans for {ladder})",
            )
        if case.length > longest:
            problems.add(
                f"make sequences of {case.length} tokens",
                where="--prompt and --tokens",
                allowed=f"together at most {longest}",
            )
        if case.prompt < 1 or case.tokens < LEAST_TOKENS:
            problems.add(
                f"are {case.prompt} and {case.tokens}",
                where="--prompt and --tokens",
                allowed=f"at least 1 and {LEAST_TOKENS}",
            )
    problems.raise_if_any()


def prompts(case: Case, vocab: int) -> list[list[int]]:
    """Ids that say nothing, different for every request: speed does not depend on them."""
    most = min(vocab, 40000)
    return [
        [(100 + 37 * i + 911 * row) % most for i in range(case.prompt)] for row in range(case.batch)
    ]
