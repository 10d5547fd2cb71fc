"""Owns reading how many experts there are and how many a token goes to."""

from __future__ import annotations

from kernelgen.spec.experts import RouterSpec
from kernelgen.spec.fields import Fields

MOST_EXPERTS = 4096
_MOST_CHOSEN = 64


def read_router(fields: Fields, count: str, chosen: str, *, experts: int, top_k: int) -> RouterSpec:
    """A softmax router over the chosen experts; `count` and `chosen` are the keys of both numbers,
    `experts` and `top_k` what an absent one means."""
    number = fields.integer(count, 1, MOST_EXPERTS, experts)
    top = fields.integer(chosen, 1, _MOST_CHOSEN, top_k)
    fields.require(
        top <= number or not fields.sound(count, chosen),
        chosen,
        f"is {top}",
        f"at most {count} = {number}",
    )
    return RouterSpec(number, min(top, number))
