"""Every kernel that a build can choose has a space of tiles to be tuned in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from kernelgen.archs.registry import builtin_config, builtin_models
from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import lowered
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.families.triton_family import TritonFamily
from kernelgen.core.errors import UnsupportedError
from kernelgen.hw import parse_target
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Match, Refusal
from kernelgen.planner.planner import Planner
from kernelgen.tables import Tables
from kernelgen.tune.neighbours import around
from kernelgen.tune.selection import EFFORTS, select
from kernelgen.tune.spaces import families, space_of

# One row, where tensor cores begin, a long prompt: each kind of family is planned somewhere.
STEPS = (("decode", 1), ("decode", 8), ("mixed", 2048))
QUANTISED = min(builtin_models(), key=lambda n: builtin_config(n).data.get("hidden_size", 1 << 30))
FORMATS = ("int4_per_group_32", "fp8_per_block")
CASES = [*((name, "") for name in sorted(builtin_models())), *((QUANTISED, f) for f in FORMATS)]
DEVICE = parse_target("sm_90")


def chosen(model: str, stored: str, folder: Path) -> Iterator[tuple[Match, Sizes]]:
    """Every kernel of modelled plans of every kind of step, and what it is priced at."""
    online = None
    if stored:
        online = folder / "online.json"
        online.write_text(json.dumps({"linear": stored}))
    graph = lowered(resolve(model), "bfloat16", online).graph
    planner = Planner(graph, DEVICE, DEVICE.target, catalogue(DEVICE, Tables(folder)))
    for step in STEPS:
        try:
            plan = planner.plan(*step)
        except UnsupportedError:  # no GPU family has some op of it: nothing to tune
            return
        for kernel in plan.kernels:
            yield kernel.match, kernel.launch_sizes(plan.sizes)


def test_no_family_of_any_plan_is_without_a_space(tmp_path: Path) -> None:
    """One kernel of each family, phase and format is looked at closely."""
    seen: dict[tuple[str, str, str], tuple[Match, Sizes]] = {}
    for model, stored in CASES:
        for match, sizes in chosen(model, stored, tmp_path):
            assert match.family.name in families()
            seen.setdefault((match.family.name, match.phase, stored), (match, sizes))
    known = {"gemv", "gemv_packed", "packed", "attention_decode", "attention_prefill", "route"}
    assert {name for name, _, _ in seen} > known
    for key, (match, sizes) in seen.items():
        look_closely(key, match, sizes)


def look_closely(key: object, match: Match, sizes: Sizes) -> None:
    """What the space holds is what a row may say, the family's own choice among it."""
    family = match.family
    assert isinstance(family, TritonFamily)
    space = space_of(match, sizes, DEVICE)
    if isinstance(space, Refusal):  # states of requests cannot be made up for a measurement
        assert "what layers keep between steps" in space.reason, (key, space)
        return
    choices = [dict(point.choice) for point in space.points]
    assert dict(space.best) in choices and len(choices) > 1, key
    assert space.looked_at >= len(choices)
    for choice in choices[:3] + choices[-3:]:
        quote = family.quote(match.region, match.roles, sizes, DEVICE, choice)
        assert not isinstance(quote, Refusal), (key, choice, quote)
    selected, _ = select(family.name, space, "quick", space.best)
    assert 1 < len(selected) <= EFFORTS["quick"]


def test_neighbours_are_few_moves_away_and_never_nothing() -> None:
    found = list(around({"outputs": 4, "stages": 1, "blocks": 0, "warps": 1}))
    assert found[0] == {"outputs": 4, "stages": 1, "blocks": 0, "warps": 1}
    assert len({tuple(one.values()) for one in found}) == len(found) > 50
    assert {one["outputs"] for one in found} == {1, 2, 4, 8, 16}
    assert {one["stages"] for one in found} == {1, 2, 3}
    assert {one["blocks"] for one in found} == {0, 1, 2}
    assert {one["warps"] for one in found} == {1, 2, 4}
