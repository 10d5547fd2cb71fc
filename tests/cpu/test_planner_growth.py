"""Planning time does not grow with depth: equal layers are lowered, solved and wired once."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from planner_toys import EIGHT_B, decoder

from kernelgen.codegen.families import catalogue
from kernelgen.hw import parse_target
from kernelgen.planner.plan import Plan
from kernelgen.planner.planner import Planner


def planned(layers: int, target: str) -> list[Plan]:
    """From a model's description to plans of three buckets."""
    graph = decoder(replace(EIGHT_B, layers=layers))
    device = parse_target(target)
    planner = Planner(graph, device, target, catalogue(device))
    return [planner.plan(*bucket) for bucket in (("decode", 1), ("decode", 8), ("mixed", 512))]


def seconds(layers: int, target: str) -> float:
    start = time.process_time()
    planned(layers, target)
    return time.process_time() - start


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_sixty_layers_take_the_time_of_six(target: str) -> None:
    planned(6, target)  # tiles once chosen are remembered: both are measured without that
    measured: dict[int, list[float]] = {6: [], 60: []}
    for _ in range(9):  # in turns, so that a busy machine slows both
        for layers, times in measured.items():
            times.append(seconds(layers, target))
    assert min(measured[60]) <= 1.2 * min(measured[6])


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_sixty_layers_need_the_kernels_and_the_workspace_of_six(target: str) -> None:
    for few, many in zip(planned(6, target), planned(60, target), strict=True):
        assert [k.name for k in few.kernels] == [k.name for k in many.kernels]
        assert few.workspace_bytes == many.workspace_bytes
        assert few.candidates == many.candidates
        in_a_layer = sum(launch.layer == 0 for launch in few.launches)
        assert len(many.launches) - len(few.launches) == 54 * in_a_layer
