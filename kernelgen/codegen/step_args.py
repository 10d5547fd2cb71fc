"""Owns the layout of the step's int32 arguments: one list that the step program and the manifest
share."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernelgen.planner.caches import PAGE_TOKENS, CacheSchema

STATE_FIELDS = ("state_from", "state_to", "state_mark", "state_mark_at")
"""by request row: pages of its states before and after the step, one kept on the way, and where"""


@dataclass(frozen=True)
class ArgsField:
    """One field: `offset` in words, `bits` says how the words are read."""

    name: str
    offset: int
    shape: tuple[int, ...]
    bits: str


@dataclass(frozen=True)
class ArgsLayout:
    """All fields and their capacities."""

    words: int
    max_tokens: int
    max_rows: int
    max_pages: int
    fields: tuple[ArgsField, ...]

    def offset(self, name: str) -> int:
        """Word at which a field starts."""
        return next(f.offset for f in self.fields if f.name == name)


def args_layout(
    cache: CacheSchema, max_tokens: int, max_rows: int, max_positions: int
) -> ArgsLayout:
    """The fields of docs/abi.md in their order, each on a cache line of its own."""
    pages = -(-max_positions // PAGE_TOKENS)
    rows = (max_rows,)
    shapes: list[tuple[str, tuple[int, ...], str]] = [
        ("counts", (4,), "int32"),
        ("token_ids", (max_tokens,), "int32"),
        ("row_slot", rows, "int32"),
        ("row_query_start", (max_rows + 1,), "int32"),
        ("row_seq_len", rows, "int32"),
        *((name, rows, "int32") for name in (STATE_FIELDS if cache.state_bytes else ())),
        *((f"block_table.{g.name}", (max_rows, pages), "int32") for g in cache.token_groups),
        ("logit_token", rows, "int32"),
        ("logit_row", rows, "int32"),
        ("temperature", rows, "float32"),
        ("top_p", rows, "float32"),
        ("top_k", rows, "int32"),
        ("seed", (max_rows, 2), "int32"),
        ("min_p", rows, "float32"),
        ("rules", rows, "int32"),
        ("logprobs", rows, "int32"),
        ("logprob_token", rows, "int32"),
        ("mask", rows, "int32"),
    ]
    fields, at = [], 0
    for name, shape, bits in shapes:
        fields.append(ArgsField(name, at, shape, bits))
        at += -(-prod(shape) // 16) * 16
    return ArgsLayout(at, max_tokens, max_rows, pages, tuple(fields))
