"""The plans of every architecture's smallest config on sm_90, as text kept beside it.

`pytest tests/cpu/test_golden_plans.py --update-golden` writes them anew; review the difference.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from planner_toys import ARCHITECTURES, MIXED, SMALL, decoder, tiny_graph

from kernelgen.archs.registry import architectures
from kernelgen.codegen.families import catalogue
from kernelgen.core.errors import UnsupportedError
from kernelgen.hw import parse_target
from kernelgen.ir.graph import Graph
from kernelgen.planner.plan import Plan
from kernelgen.planner.planner import Planner
from kernelgen.planner.text import plan_text
from kernelgen.tables import Tables

BUCKETS = (("decode", 1), ("decode", 64), ("mixed", 512))
"""one row, as many rows as few-row products take, a prompt"""


def plans(graph: Graph) -> list[Plan]:
    device = parse_target("sm_90")
    families = catalogue(device, Tables(Path("no rows")))  # a sweep changes no golden file
    planner = Planner(graph, device, device.target, families, context=256)
    return [planner.plan(*bucket) for bucket in BUCKETS]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_golden_plan(name: str, request: pytest.FixtureRequest) -> None:
    text = "\n".join(plan_text(plan) for plan in plans(tiny_graph(name)))
    path = architectures()[name].folder / "golden.plan"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    hint = f"{path} is out of date: look at the difference, then --update-golden"
    assert path.is_file() and path.read_text() == text, hint


@pytest.mark.parametrize("name", sorted(set(architectures()) - set(ARCHITECTURES)))
def test_without_kernels_for_gpus_the_op_is_named(name: str) -> None:
    """A folder has no golden plan only while some op of it runs on the CPU alone."""
    with pytest.raises(UnsupportedError, match="no kernel family covers"):
        plans(tiny_graph(name))


def test_text_names_every_kernel_and_every_pair() -> None:
    for plan in plans(decoder(SMALL)):
        text = plan_text(plan)
        assert f"{plan.launch_count} launches" in text
        for kernel in plan.kernels:
            assert re.search(rf"^  {kernel.name} +{kernel.match.family.name} ", text, re.M)
        for fusion in plan.fusions:
            assert f"{fusion.a} | {fusion.b} ({fusion.bytes_saved})" in text
            assert fusion.reason in text


def test_text_is_the_same_every_time() -> None:
    first, again = (["\n".join(map(plan_text, plans(decoder(SMALL))))] for _ in range(2))
    assert first == again


def test_a_layer_that_says_nothing_new_is_not_repeated() -> None:
    text = plan_text(plans(decoder(MIXED))[0])
    assert "\nlayer_full_2 (layers 3): as layer_full\n" in text
    assert text.count("\nlayer_full (layers 0)\n") == 1
