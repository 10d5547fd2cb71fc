"""One engine, one scheduler and one runner for each kind of device, made in one place each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest
from kernelgen_runtime.artifact.read import parse_manifests
from runtime_fakes import manifest_json, target_json
from source_tree import modules

LAUNCH = "kernelgen_runtime.launch"
MADE_IN = {
    "HostRunner": f"{LAUNCH}.loading",
    "CudaRunner": f"{LAUNCH}.loading",
    "Program": "kernelgen_runtime.llm",
    "Scheduler": "kernelgen_runtime.llm",
    "Engine": "kernelgen_runtime.llm",
}


def nodes(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Every node of that kind in the runtime, with the module it stands in."""
    for name, module in modules().items():
        if name.startswith("kernelgen_runtime"):
            for node in ast.walk(module.tree):
                if isinstance(node, kind):
                    yield name, node


@pytest.mark.row("R-075")
def test_what_runs_steps_is_one_class_for_each_kind_of_device() -> None:
    found = set()
    for name, node in nodes(ast.ClassDef):
        methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
        if methods & {"start", "follow", "misses_graph"}:
            found.add((name, node.name))
    assert found == {
        (f"{LAUNCH}.runner", "Runner"),  # what the two others are
        (f"{LAUNCH}.host_runner", "HostRunner"),
        (f"{LAUNCH}.cuda_runner", "CudaRunner"),
    }


@pytest.mark.row("R-075")
def test_nobody_makes_a_second_one() -> None:
    made = [
        (node.func.id, name)
        for name, node in nodes(ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id in MADE_IN
    ]
    assert sorted(made) == sorted(MADE_IN.items())


@pytest.mark.row("R-075")
@pytest.mark.parametrize("field", ["row_slot", "row_query_start"])
def test_a_build_whose_rows_are_no_slots_is_refused(field: str) -> None:
    values = manifest_json()
    fields = target_json(values)["args"]["fields"]
    fields[:] = [of for of in fields if of["name"] != field]
    problems: list[str] = []
    parse_manifests(values, problems)
    assert [p for p in problems if f"{field} is missing" in p]
