"""The steps that kernels are tried on: every size is there, pages are nobody's twice."""

from __future__ import annotations

import numpy as np
import pytest

from kernelgen.verify.arguments import block_tables, step_values, step_view, token_ids, write_args
from kernelgen.verify.built import Group
from kernelgen.verify.scenario import DECODE_ROWS, MIXED_TOKENS, Scenario, scenarios

GROUPS = (Group("full_0", None, (0, 2)), Group("window8_0", 8, (1,)), Group("window40_0", 40, (3,)))
POSITIONS = (192, 4096)  # less than the largest step, and more
LARGEST = {"decode": 256, "mixed": 8192}
EVERY = [s for p in POSITIONS for phase, most in LARGEST.items() for s in scenarios(phase, p, most)]


def test_sizes_of_the_steps() -> None:
    assert [s.tokens > 0 for s in EVERY] == [True] * len(EVERY)
    decode = [len(s.requests) for s in scenarios("decode", 4096, 256)]
    assert decode == list(DECODE_ROWS)
    mixed = scenarios("mixed", 4096, 8192)
    assert {s.tokens for s in mixed} == set(MIXED_TOKENS)
    assert {s.tokens for s in mixed if len(s.requests) == 1} == set(MIXED_TOKENS)
    assert {s.tokens for s in mixed if len(s.requests) > 1} == set(MIXED_TOKENS) - {1}


def test_padding_with_and_without_token_rows() -> None:
    counts = {r.new for s in EVERY for r in s.requests if r.padding}
    assert {0, 1, 2} <= counts
    assert any(-1 in s.logit_rows for s in EVERY)


@pytest.mark.parametrize("scenario", EVERY, ids=lambda s: s.name)
def test_steps_are_ones_that_the_library_takes(scenario: Scenario) -> None:
    most = 192 if scenario in EVERY[: len(EVERY) // 2] else 4096
    slots = [r.slot for r in scenario.requests if not r.padding]
    assert len(set(slots)) == len(slots)
    assert all(r.length <= most for r in scenario.requests)
    assert all(scenario.owners[t] >= 0 for t in scenario.logit_tokens)
    if scenario.phase == "decode":
        assert all(r.new <= 1 for r in scenario.requests)
    for row, request in zip(scenario.logit_rows, scenario.logit_tokens, strict=True):
        assert row in (-1, scenario.owners[request])


@pytest.mark.parametrize("scenario", EVERY, ids=lambda s: s.name)
def test_pages_are_given_once_and_released_below_the_window(scenario: Scenario) -> None:
    tables = block_tables(scenario, GROUPS, np.random.default_rng(0))
    given = np.concatenate([t[t > 0] for t in tables.entries.values()])
    assert len(set(given.tolist())) == len(given) < tables.pages - 1
    for group in GROUPS:
        for row, request in enumerate(scenario.requests):
            entries = tables.entries[group.name][row]
            for page, number in enumerate(entries):
                tokens = range(16 * page, 16 * page + 16)
                used = not request.padding and tokens.start < request.length
                below = group.window is not None and tokens[-1] < request.history - group.window + 1
                assert (number > 0) == (used and not below), (group.name, row, page)


def test_arguments_hold_the_step_and_nonsense_elsewhere() -> None:
    scenario = next(s for s in scenarios("mixed", 4096, 8192) if s.tokens == 64 and s.requests[1:])
    rng = np.random.default_rng(1)
    tables, ids = block_tables(scenario, GROUPS, rng), token_ids(scenario, 100, rng)
    names = ["counts", "token_ids", "row_slot", "row_query_start", "row_seq_len", "logit_token"]
    names += ["logit_row", "temperature", "top_p", "top_k"]
    sizes = {"counts": [4], "token_ids": [128], "row_query_start": [17]}
    fields, at = [], 0
    for name in names:
        bits = "float32" if name in ("temperature", "top_p") else "int32"
        shape = sizes.get(name, [16])
        fields.append({"name": name, "offset": at, "shape": shape, "bits": bits})
        at += shape[0]
    for name in ("seed", *(f"block_table.{g.name}" for g in GROUPS)):
        shape = [16, 2] if name == "seed" else [16, 12]
        fields.append({"name": name, "offset": at, "shape": shape, "bits": "int32"})
        at += shape[0] * shape[1]
    words = write_args({"words": at, "fields": fields}, scenario, tables, ids)
    place = {f["name"]: words[f["offset"] :] for f in fields}
    requests = len(scenario.requests)
    assert place["counts"][:4].tolist() == [64, requests, len(scenario.logit_tokens), 0]
    assert place["row_query_start"][: requests + 1].tolist() == list(scenario.starts)
    assert place["row_query_start"][requests + 1] < -1000
    assert place["temperature"][:requests].view(np.float32).tolist() == pytest.approx(
        [r.sampling.temperature for r in scenario.requests]
    )
    seeds = place["seed"][: 2 * requests].view("<i8").tolist()
    assert seeds == [r.sampling.seed for r in scenario.requests]
    row = place["block_table.full_0"][:12].tolist()
    assert row[: tables.entries["full_0"].shape[1]] == tables.entries["full_0"][0].tolist()
    assert set(row[tables.entries["full_0"].shape[1] :]) <= {0}


def test_ids_come_from_the_step_or_from_last_sampled() -> None:
    scenario = scenarios("decode", 4096, 256)[-1]
    ids = token_ids(scenario, 50, np.random.default_rng(2))
    assert -1 in ids.given and (ids.given >= 0).any()
    for token, owner in enumerate(scenario.owners):
        if owner < 0:
            assert ids.meant[token] == -1
        elif ids.given[token] < 0:
            assert ids.meant[token] == ids.last_sampled[scenario.requests[owner].slot]
        else:
            assert ids.meant[token] == ids.given[token]


def test_a_row_alone_is_the_same_row() -> None:
    scenario = next(s for s in scenarios("mixed", 4096, 8192) if s.tokens == 64 and s.requests[1:])
    token = next(t for t, o in enumerate(scenario.owners) if o > 0 and scenario.positions[t] > 20)
    alone = scenario.alone(token)
    assert alone.tokens == 1 and alone.positions == (scenario.positions[token],)
    assert alone.requests[0].slot == scenario.requests[scenario.owners[token]].slot
    values = step_values(alone, token_ids(alone, 9, np.random.default_rng(3)))
    assert step_view(alone, values).position == [scenario.positions[token] + 1]
