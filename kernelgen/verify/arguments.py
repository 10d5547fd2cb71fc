"""Owns a scenario in numbers: block tables, int32 arguments, the view that references take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelgen.ops.step import StepView
from kernelgen.verify.built import Group
from kernelgen.verify.layouts import PAGE_TOKENS
from kernelgen.verify.scenario import Scenario

Ints = npt.NDArray[np.int32]
UNWRITTEN = -123456789
"""stands in every word of the arguments that a step does not use"""


@dataclass(frozen=True)
class Tables:
    """Block tables by group name, `[request rows, pages]`, and the size of the pool."""

    entries: Mapping[str, Ints]
    pages: int

    def only(self, row: int) -> Tables:
        """The tables of one request row."""
        return Tables({name: t[row : row + 1] for name, t in self.entries.items()}, self.pages)


def block_tables(
    scenario: Scenario, groups: Sequence[Group], rng: np.random.Generator, spare: int = 3
) -> Tables:
    """Pages in random order, none used twice, `spare` of the pool unused, page 0 never given.

    A window group has released each page whose tokens all lie below what the next token reads.
    """
    groups = [g for g in groups if not g.per_request]
    wanted = [
        [range(_first_page(r.history, g.window), -(-r.length // PAGE_TOKENS)) for g in groups]
        for r in scenario.requests
    ]
    count = sum(len(span) for row in wanted for span in row)
    numbers = iter((1 + rng.permutation(count + spare)).tolist())
    width = max((span.stop for row in wanted for span in row), default=0)
    entries = {g.name: np.zeros((len(wanted), width), np.int32) for g in groups}
    for r, row in enumerate(wanted):
        for group, span in zip(groups, row, strict=True):
            for page in span:
                entries[group.name][r, page] = next(numbers)
    return Tables(entries, 1 + count + spare)


def _first_page(computed: int, window: int | None) -> int:
    """The first page that is still held once `computed` tokens are in the cache."""
    if window is None:
        return 0
    return max(0, computed - window + 1) // PAGE_TOKENS


@dataclass(frozen=True)
class Ids:
    """Token ids as given (−1: the last sampled one), as meant, and `last_sampled` by slot."""

    given: Ints
    meant: Ints
    last_sampled: Ints


def token_ids(scenario: Scenario, vocab: int, rng: np.random.Generator) -> Ids:
    """Random ids; each second request takes its first one from `last_sampled`."""
    slots = 2 + max(r.slot for r in scenario.requests)
    last = rng.integers(0, vocab, max(1, slots), dtype=np.int32)
    given = rng.integers(0, vocab, scenario.tokens, dtype=np.int32)
    meant = given.copy()
    for i, request in enumerate(scenario.requests):
        rows = slice(scenario.starts[i], scenario.starts[i + 1])
        if request.padding:
            given[rows], meant[rows] = 0, -1
        elif i % 2 == 0 and request.new == 1:
            given[rows], meant[rows] = -1, last[request.slot]
    return Ids(given, meant, last)


def write_args(
    schema: Mapping[str, Any],
    scenario: Scenario,
    tables: Tables,
    ids: Ids,
    *,
    unused: int = UNWRITTEN,
) -> Ints:
    """The `args` tensor as `manifest.args` lays it out; what the step does not use is no sense."""
    words = np.full(schema["words"], unused, np.int32)
    fields: dict[str, Any] = {}
    for field in schema["fields"]:
        count = int(np.prod(field["shape"]))
        span = words[field["offset"] : field["offset"] + count].reshape(field["shape"])
        fields[field["name"]] = span.view(np.float32) if field["bits"] == "float32" else span
    requests, logit_rows = len(scenario.requests), len(scenario.logit_tokens)
    fields["counts"][:] = (scenario.tokens, requests, logit_rows, 0)
    fields["token_ids"][: scenario.tokens] = ids.given
    fields["row_query_start"][: requests + 1] = scenario.starts
    fields["logit_token"][:logit_rows] = scenario.logit_tokens
    fields["logit_row"][:logit_rows] = scenario.logit_rows
    for i, request in enumerate(scenario.requests):
        fields["row_slot"][i] = request.slot
        fields["row_seq_len"][i] = request.length
        fields["temperature"][i] = request.sampling.temperature
        fields["top_p"][i] = request.sampling.top_p
        fields["top_k"][i] = request.sampling.top_k
        if "min_p" in fields:
            fields["min_p"][i], fields["rules"][i] = request.sampling.min_p, 0
        low, high = request.sampling.seed & 0xFFFFFFFF, request.sampling.seed >> 32
        fields["seed"][i] = np.array([low, high & 0xFFFFFFFF], np.uint32).view(np.int32)
    for name in ("state_from", "state_to", "state_mark", "state_mark_at"):
        if name in fields:  # a page for each request row, none of them the null page
            used = name in ("state_from", "state_to")
            fields[name][:requests] = np.arange(1, requests + 1) if used else 0
    for name, entries in tables.entries.items():
        table = fields[f"block_table.{name}"]
        table[:requests] = 0
        table[:requests, : entries.shape[1]] = entries
    return words


def step_values(scenario: Scenario, ids: Ids) -> dict[str, Any]:
    """What references read as step values, int64 tensors by name."""
    import torch

    lists: dict[str, Sequence[int]] = {
        "token_ids": ids.meant.tolist(),
        "positions": scenario.positions,
        "rows": scenario.owners,
        "logit_tokens": scenario.logit_tokens,
        "sampling": range(len(scenario.logit_tokens)),
    }
    return {name: torch.tensor(list(items), dtype=torch.int64) for name, items in lists.items()}


def step_view(scenario: Scenario, values: Mapping[str, Any]) -> StepView:
    """The step as references see it; a logit row is sampled as the request of its token wants."""
    sampling = [scenario.requests[scenario.owners[t]].sampling for t in scenario.logit_tokens]
    return StepView(
        positions=values["positions"],
        request=values["rows"],
        temperature=[_stored(s.temperature) for s in sampling],
        top_k=[s.top_k for s in sampling],
        top_p=[_stored(s.top_p) for s in sampling],
        seed=[s.seed for s in sampling],
        position=[scenario.positions[t] + 1 for t in scenario.logit_tokens],
        min_p=[_stored(s.min_p) for s in sampling],
    )


def _stored(number: float) -> float:
    """A number as the arguments hold it."""
    return float(np.float32(number))
