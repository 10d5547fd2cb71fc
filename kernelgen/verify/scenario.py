"""Owns the steps that kernels are tried on: requests, lengths, padding, logit rows, sampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle

MIXED_TOKENS = (1, 2, 3, 7, 64, 513)
"""one row, few rows (each tile height), one page and many, one more than a power of two"""
DECODE_ROWS = (1, 2, 7, 33)
"""alone, a pair, an odd number, more than one register tile and not a plan's size"""
MOST_LOGIT_ROWS = 96
MOST_PLANNED_TOKENS = 1100
"""of the steps that plans of any size are tried on: beyond eight bands of the largest tile"""


@dataclass(frozen=True)
class Sampling:
    """How one request wants its token chosen."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0


@dataclass(frozen=True)
class Request:
    """One request row: `history` tokens are in the cache, `new` come with this step."""

    history: int
    new: int
    slot: int
    """−1: padding, whatever else is said does not count"""
    sampling: Sampling = Sampling()

    @property
    def padding(self) -> bool:
        """Whether the row does nothing."""
        return self.slot < 0

    @property
    def length(self) -> int:
        """Tokens once the step is done."""
        return 0 if self.padding else self.history + self.new


@dataclass(frozen=True)
class Scenario:
    """One step. `logit_rows` holds for each logit row the request that takes the id, or −1."""

    name: str
    phase: str
    requests: tuple[Request, ...]
    logit_tokens: tuple[int, ...]
    logit_rows: tuple[int, ...]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First token row of each request row, and the number of token rows."""
        found = [0]
        for request in self.requests:
            found.append(found[-1] + request.new)
        return tuple(found)

    @property
    def tokens(self) -> int:
        """Token rows."""
        return self.starts[-1]

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """Request row of each token row, −1 for padding."""
        return tuple(
            -1 if r.padding else i for i, r in enumerate(self.requests) for _ in range(r.new)
        )

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """Position of each token row; 0 for padding, as the step program gives it to kernels."""
        return tuple(0 if r.padding else r.history + n for r in self.requests for n in range(r.new))

    def alone(self, token: int) -> Scenario:
        """A step that computes one of the token rows by itself, with its logits."""
        request = self.requests[self.owners[token]]
        one = Request(self.positions[token], 1, request.slot, request.sampling)
        asked = dict(zip(self.logit_tokens, self.logit_rows, strict=True))
        owner = min(0, asked.get(token, 0))
        return Scenario(f"{self.name}, row {token} alone", self.phase, (one,), (0,), (owner,))


_HISTORIES = (37, 0, 5, 16, 100, 31, 3, 63, 15, 7)
"""empty, inside a page, at its edges, over several pages; beyond small windows"""
_CHUNKS = (1, 5, 17, 1, 30, 3, 128, 2, 64)
_SAMPLING = (
    Sampling(),
    Sampling(0.7, seed=11),
    Sampling(1.0, top_p=0.9, seed=-12),
    Sampling(1.3, top_k=5, seed=1 << 40),
    Sampling(0.8, top_k=40, top_p=0.6, seed=(1 << 63) - 1),
    Sampling(2.0, top_k=1, seed=3),
    Sampling(0.1, top_p=1e-6, seed=4),
    Sampling(1.5, min_p=0.3, seed=6),
    Sampling(1.2, top_k=30, top_p=0.9, min_p=0.05, seed=9),
)


def scenarios(phase: str, most_positions: int, most: int) -> tuple[Scenario, ...]:
    """The steps of a phase, for a model that takes `most_positions` tokens a request.

    `most`: rows (decode) or tokens of the largest step that the build has a plan for.
    """
    if phase == "decode":
        sizes = sorted({min(n, most) for n in DECODE_ROWS})
        return tuple(_decode(n, most_positions) for n in sizes)
    found = []
    for tokens in sorted({min(n, most) for n in MIXED_TOKENS}):
        one, several = _one_chunk(tokens, most_positions), _several(tokens, most_positions)
        found += [one] if tokens == 1 else [one, several]
    return tuple(dict.fromkeys(found))


def planned_scenarios(phase: str, most_positions: int, size: int) -> tuple[Scenario, ...]:
    """The steps on which a plan of `size` is tried: full, nearly full, half, and one token.

    Long prompts are cut: a reference of 8192 tokens takes minutes.
    """
    if phase == "decode":
        sizes = sorted({1, size // 2 + 1, max(1, size - 1), size})
        return tuple(_decode(n, most_positions) for n in sizes)
    full = min(size, MOST_PLANNED_TOKENS)
    several = {min(full, 83), full, full - (full == size)}
    found = [_one_chunk(1, most_positions), _one_chunk(min(full, 300), most_positions)]
    found += [_several(n, most_positions) for n in sorted(several)]
    return tuple(dict.fromkeys(found))


def _decode(rows: int, most_positions: int) -> Scenario:
    """One token a request; every fifth row is padding, with and without a token row."""
    histories, sampling = cycle(_HISTORIES), cycle(_SAMPLING)
    requests = []
    for i in range(rows):
        if i % 5 == 3:
            requests.append(Request(0, i % 2, -1))
        else:
            history = next(histories) % max(1, most_positions - 1)
            requests.append(Request(history, 1, _slot(i), next(sampling)))
    return _asked(f"decode {rows} rows", "decode", tuple(requests))


def _one_chunk(tokens: int, most_positions: int) -> Scenario:
    """A prompt's piece behind some history, with logits of many of its tokens."""
    history = min(37, most_positions // 4)
    new = min(tokens, most_positions - history)
    request = Request(history, new, 2, Sampling(1.0, top_p=0.9, seed=5))
    wanted = range(max(0, new - MOST_LOGIT_ROWS), new)
    owners = tuple(0 if t == new - 1 else -1 for t in wanted)
    return Scenario(f"chunk of {new}", "mixed", (request,), tuple(wanted), owners)


def _several(tokens: int, most_positions: int) -> Scenario:
    """Pieces of different requests; from 7 tokens on with padding rows between them."""
    histories, chunks, sampling = cycle(_HISTORIES), cycle(_CHUNKS), cycle(_SAMPLING)
    requests: list[Request] = []
    left = tokens
    while left:
        new = min(left, next(chunks), most_positions)
        if tokens >= 7 and len(requests) % 3 == 1:
            new = min(left, 2)
            requests.append(Request(0, new, -1))
        else:
            history = min(next(histories), most_positions - new)
            requests.append(Request(history, new, _slot(len(requests)), next(sampling)))
        left -= new
    return _asked(f"{tokens} tokens of {len(requests)} requests", "mixed", tuple(requests))


def ladder_scenario(rows: int, most_positions: int) -> Scenario:
    """The decode step of which `beginning` cuts others."""
    return _decode(rows, most_positions)


def beginning(scenario: Scenario, rows: int) -> Scenario:
    """The first request rows of a step."""
    name = f"{scenario.phase} {rows} rows"
    return _asked(name, scenario.phase, scenario.requests[:rows])


def mixed_scenario(tokens: int, most_positions: int) -> Scenario:
    """Pieces of several prompts, `tokens` in all."""
    return _several(tokens, most_positions)


def _asked(name: str, phase: str, requests: tuple[Request, ...]) -> Scenario:
    """Every request asks for its last token; one logit row in seven is wanted without sampling."""
    tokens = tuple(_last_tokens(requests))
    owners = tuple(-1 if i % 7 == 4 else row for i, (row, _) in enumerate(tokens))
    return Scenario(name, phase, requests, tuple(t for _, t in tokens), owners)


def _last_tokens(requests: tuple[Request, ...]) -> Iterator[tuple[int, int]]:
    at = 0
    for row, request in enumerate(requests):
        at += request.new
        if not request.padding and request.new:
            yield row, at - 1


def _slot(row: int) -> int:
    """Slots in another order than rows, each used once."""
    return row ^ 1
