"""Stacks of experts from a checkpoint: gate above up in one tensor, panels of each matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernelgen_runtime.artifact.fields import Fields
from kernelgen_runtime.artifact.sections import read_weight
from kernelgen_runtime.weights.layout import fill

from kernelgen.codegen.weights import panel_shape
from kernelgen.verify.layouts import laid_out

EXPERTS, ROWS, COLUMNS = 3, 37, 21
TENSOR = torch.randn(EXPERTS, 2 * ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))


class Source:
    """One tensor in memory."""

    def rows(self, name: str, first: int, count: int, cols: int) -> torch.Tensor:
        return TENSOR.view(-1, cols)[first : first + count]


def entry(layout: str, **changes: Any) -> dict[str, Any]:
    matrix = (EXPERTS, ROWS, COLUMNS)
    part = {"tensor": "gate_up", "rows": EXPERTS * ROWS, "cols": COLUMNS}
    part["take"] = changes.pop("take", [ROWS, ROWS, 2 * ROWS])
    shape = panel_shape(matrix, "float32") if layout == "panel" else matrix
    return {
        "name": "up",
        "dtype": "float32",
        "shape": list(shape),
        "source": "checkpoint",
        "layout": layout,
        "interleave": 0,
        "stack": EXPERTS,
        "parts": [part],
    } | changes


def read(data: dict[str, Any]) -> tuple[Any, list[str]]:
    problems: list[str] = []
    return read_weight(Fields(data, "", problems)), problems


@pytest.mark.parametrize("layout", ["rows", "panel"])
@pytest.mark.parametrize("block_bytes", [1, 8 << 20])
def test_the_lower_half_of_every_matrix(layout: str, block_bytes: int) -> None:
    weight, problems = read(entry(layout))
    assert not problems
    out = torch.zeros(weight.shape)
    fill(weight, Source(), out, block_bytes)
    assert torch.equal(out, laid_out(TENSOR[:, ROWS:].contiguous(), layout))


@pytest.mark.parametrize("layout", ["rows", "panel"])
@pytest.mark.parametrize("block_bytes", [1, 8 << 20])
@pytest.mark.parametrize("together", [1, 2])
def test_a_tensor_for_each_expert_is_gathered(layout: str, block_bytes: int, together: int) -> None:
    """`experts.N.w1` with gate above up; some checkpoints keep two experts in a tensor."""
    count = EXPERTS * together
    parts = [
        {"tensor": f"experts.{n}.w1", "rows": together * ROWS, "cols": COLUMNS}
        | {"take": [ROWS, ROWS, 2 * ROWS]}
        for n in range(EXPERTS)
    ]
    whole = torch.cat([TENSOR, TENSOR * 2]) if together == 2 else TENSOR
    shape = (count, ROWS, COLUMNS)
    if layout == "panel":
        shape = panel_shape(shape, "float32")
    weight, problems = read(entry(layout, stack=count, shape=list(shape), parts=parts))
    assert not problems
    asked = []

    class Experts:
        def rows(self, name: str, first: int, rows: int, cols: int) -> torch.Tensor:
            number = int(name.split(".")[1])
            asked.append((number, rows))
            matrices = whole[together * number : together * (number + 1)]
            return matrices.reshape(-1, cols)[first : first + rows]

    out = torch.zeros(weight.shape)
    fill(weight, Experts(), out, block_bytes)
    assert torch.equal(out, laid_out(whole[:, ROWS:].contiguous(), layout))
    assert [number for number, _ in asked] == sorted(number for number, _ in asked)
    assert sum(rows for _, rows in asked) == count * ROWS, "bytes of `up` alone, each once"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"take": [0, 0, 5]}, "take: must be first, count, period"),
        ({"take": [50, 37, 74]}, "take: must be first, count, period"),
        ({"take": [0, 36, 74]}, "take: must be first, count, period"),
        ({"take": [0, 37]}, "take: must be first, count, period"),
        ({"stack": 5}, "stack: must divide all rows so that each part has whole matrices"),
        ({"stack": 1000}, "stack: must divide all rows so that each part has whole matrices"),
        (
            {"parts": [{"tensor": t, "rows": r, "cols": 21} for t, r in (("a", 55), ("b", 56))]},
            "stack: must divide all rows so that each part has whole matrices",
        ),
        ({"stack": 0}, "stack: must be an integer from 1"),
        ({"stack": 1}, "shape: is"),
        ({"interleave": 2}, "interleave: must be 0"),
        ({"source": {"rope": {}}}, "stack: is for plain weights"),
    ],
)
def test_what_does_not_fit_is_told(changes: dict[str, Any], told: str) -> None:
    problems = read(entry("rows", **changes))[1]
    assert any(told in p for p in problems), problems
