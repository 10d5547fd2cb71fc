"""Generated row kernels under Triton's interpreter: regions of the family against float64."""

from __future__ import annotations

import pytest
from gpu_trials import Trial, architectures, named, tiny

from kernelgen.codegen.families.row_sections import row_sections
from kernelgen.codegen.families.triton_block import next_power_of_two
from kernelgen.core.dtypes import BFLOAT16, DType
from kernelgen.planner.family import Match
from kernelgen.verify.scenario import Scenario, scenarios


def _scenario(phase: str, positions: int, tokens: int) -> Scenario:
    return min(scenarios(phase, positions, 513), key=lambda s: abs(s.tokens - tokens))


def _regions(architecture: str, dtype: DType) -> list[tuple[int, Match]]:
    """Largest regions of each block, and each op alone: the rest is made of the same statements."""
    model = tiny(architecture, dtype)
    found, seen = [], set()
    for block in range(len(model.graph.blocks)):
        matches = model.matches(block, "rows", "mixed")
        for match in matches:
            inside = [m for m in matches if m.region.mask != match.region.mask]
            largest = not any(
                m.region.mask & match.region.mask == match.region.mask for m in inside
            )
            if match.variant not in seen and (largest or len(match.region.nodes) == 1):
                seen.add(match.variant)
                found.append((block, match))
    return found


CASES = [(a, i) for a in architectures() for i in range(len(_regions(a, BFLOAT16)))]


@pytest.mark.parametrize("architecture, number", CASES, ids=lambda x: str(x))
def test_rows(architecture: str, number: int) -> None:
    model = tiny(architecture, BFLOAT16)
    block, match = _regions(architecture, BFLOAT16)[number]
    width = next_power_of_two(max(s.width for s in row_sections(match.region)))
    parts = all(s.parts for s in row_sections(match.region))
    tile = {
        "rows": (1, 4)[number % 2],
        "width": width // 2 if parts and number % 2 == 0 else width,
        "warps": 4,
    }
    scenario = _scenario("mixed", model.positions, (7, 64)[number % 2])
    layer = next((p.layer for p in model.graph.sequence if p.block == block), None)
    problems = Trial(
        model, named(match, "rows"), tile, scenario, scenario.tokens + 3, layer or 0
    ).problems()
    assert not problems, [n.name for n in match.region.nodes]
