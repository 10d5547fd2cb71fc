"""Mixtures over depth as Triton: two to nine sources, alone and between a sum and a norm."""

from __future__ import annotations

from functools import cache

import pytest
from gpu_trials import Tiny, Trial, named

from kernelgen.core.dtypes import BFLOAT16
from kernelgen.ir.graph import BlockBuilder, Graph, Placement
from kernelgen.lower.depth import depth_mix
from kernelgen.lower.norm import rms_norm
from kernelgen.lower.residual import add_residual
from kernelgen.lower.scope import Numerics, Scope
from kernelgen.planner.family import Match
from kernelgen.verify.scenario import scenarios

WIDTH, TOKENS = 56, 5


@cache
def model(sources: int) -> Tiny:
    """A block that adds to the open block, mixes, and norms what it has mixed."""
    scope = Scope(BlockBuilder("mix"), Numerics.of(BFLOAT16, BFLOAT16), {})
    x = add_residual(scope, "added", scope.stream(WIDTH), scope.stream(WIDTH, "fed"))
    mixed = depth_mix(scope, "depth", x, sources - 1, 1e-5)
    normed = rms_norm(scope, "norm", mixed, 1e-5)
    block = scope.builder.build([("x", x), ("normed", normed)])
    return Tiny("depth", Graph("depth", (block,), (Placement(0, 0),)), 64, 64)


def match_of(sources: int, ops: int) -> Match:
    """The mixture alone, with its norm, or with the sum as well."""
    found = [
        m
        for m in model(sources).matches(0, "rows", "mixed")
        if len(m.region.nodes) == ops and any(n.op.kind == "depth_mix" for n in m.region.nodes)
    ]
    return found[-1]


@pytest.mark.row("R-026")
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("ops", [1, 3, 4])
@pytest.mark.parametrize("sources", [2, 3, 4, 7, 9])
def test_depth(sources: int, ops: int, rows: int) -> None:
    scenario = min(scenarios("mixed", 64, 513), key=lambda s: abs(s.tokens - TOKENS))
    tile = {"rows": rows, "width": 64, "warps": 4}
    kernel = named(match_of(sources, ops), "rows")
    assert not Trial(model(sources), kernel, tile, scenario, scenario.tokens + 3).problems()
