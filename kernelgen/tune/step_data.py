"""Owns the step that a kernel is measured in: requests, lengths, pages, as words of arguments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kernelgen.tune.bundle import Group, ModelFacts

PAGE = 16
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Requests:
    """The requests of a step: all have the same length, as a bucket means it."""

    count: int
    new: int
    """tokens that each brings"""
    length: int
    """tokens once the step is done"""
    logit_tokens: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Token rows."""
        return self.count * self.new

    @cached_property
    def positions(self) -> Ints:
        """Of each token row."""
        one = np.arange(self.length - self.new, self.length, dtype=np.int32)
        return np.tile(one, self.count)

    @cached_property
    def owners(self) -> Ints:
        """Request row of each token row."""
        return np.repeat(np.arange(self.count, dtype=np.int32), self.new)


def requests_of(group: Group, facts: ModelFacts, *, every_logit: bool) -> Requests:
    """Decode: one token a request behind its context. Mixed: one request that brings all tokens.

    `every_logit`: as many rows of logits as the step has room for, where a usual step asks one for
    each request.
    """
    sizes = group.extents
    most = facts.max_pages * PAGE
    if group.phase == "decode":
        length = max(1, min(sizes.context, most))
        return Requests(sizes.tokens, 1, length, tuple(range(sizes.tokens)))
    length = max(sizes.tokens, min(sizes.context, most))
    asked = max(sizes.rows, sizes.row_capacity) if every_logit else sizes.rows
    first = sizes.tokens - min(asked, sizes.tokens)
    return Requests(1, sizes.tokens, length, tuple(range(first, sizes.tokens)))


def pages_of(requests: Requests) -> int:
    """Pages that the requests hold."""
    return requests.count * -(-requests.length // PAGE)


@dataclass(frozen=True)
class Choosing:
    """How every request of a step wants its token; greedy where the temperature is 0."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


GREEDY, KEYED = Choosing(), Choosing(0.8, 40, 0.9)


def seed_of(row: int) -> int:
    """The seed of a request row, in both words."""
    return (0x9E3779B97F4A7C15 * (row + 1)) & ((1 << 63) - 1)


def block_table(requests: Requests, window: int | None, pages: Ints) -> Ints:
    """`[requests, pages]` page numbers; those that a window has left behind are released: 0."""
    each = -(-requests.length // PAGE)
    table = pages.reshape(requests.count, each).copy()
    if window is not None:
        table[:, : max(0, requests.length - requests.new - window + 1) // PAGE] = 0
    return table


def args_words(
    facts: ModelFacts,
    requests: Requests,
    token_ids: Ints,
    pages: Ints,
    choosing: Choosing = GREEDY,
    *,
    spared: bool,
) -> Ints:
    """The `args` tensor of the step. `spared`: nobody reads the logits of greedy rows."""
    words = np.zeros(facts.args_words, np.int32)

    def put(name: str, values: npt.NDArray[np.generic]) -> None:
        field = next(f for f in facts.fields if f.name == name)
        span = words[field.offset : field.offset + int(np.prod(field.shape))].reshape(field.shape)
        place = tuple(slice(0, n) for n in values.shape)
        span[place] = values.view(np.int32)

    rows, logits = requests.count, len(requests.logit_tokens)
    each = np.arange(rows, dtype=np.int32)
    put("counts", np.array([requests.tokens, rows, logits, int(spared)], np.int32))
    put("token_ids", token_ids)
    put("row_slot", np.concatenate([each, np.full(facts.max_rows - rows, -1, np.int32)]))
    starts = np.full(facts.max_rows + 1, requests.tokens, np.int32)
    starts[: rows + 1] = np.arange(rows + 1) * requests.new
    put("row_query_start", starts)
    put("row_seq_len", np.full(rows, requests.length, np.int32))
    for group in facts.cache_groups:
        put(f"block_table.{group.name}", block_table(requests, group.window, pages))
    put("logit_token", np.array(requests.logit_tokens, np.int32))
    owners = requests.owners[list(requests.logit_tokens)]
    last = np.append(owners[1:] != owners[:-1], True)
    put("logit_row", np.where(last, owners, -1).astype(np.int32))
    put("temperature", np.full(rows, choosing.temperature, np.float32))
    put("top_p", np.full(rows, choosing.top_p, np.float32))
    put("top_k", np.full(rows, choosing.top_k, np.int32))
    seeds = np.array([[seed_of(r) & 0xFFFFFFFF, seed_of(r) >> 32] for r in range(rows)], np.uint32)
    put("seed", seeds)
    return words
