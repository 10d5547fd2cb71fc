"""Products through a ring: places are used again; a copy that comes too early is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpu_trials import Tiny, Trial

from kernelgen.codegen.triton import ring as printed
from kernelgen.core.dtypes import BFLOAT16, FLOAT32
from kernelgen.ir.expr import arg
from kernelgen.ir.graph import BlockBuilder, Graph, Placement, Role
from kernelgen.ir.types import Dim, Type
from kernelgen.ops import Linear, Pointwise
from kernelgen.spec.model import CacheSpec
from kernelgen.verify import rings
from kernelgen.verify.scenario import scenarios

WIDTH, ROWS = 600, 8  # ten steps of 64, the last one partly filled


def _long() -> Tiny:
    """Two products of a long row that meet, and one that meets a residual."""
    build = BlockBuilder("long")
    x = build.declare("x", Type((Dim.T, WIDTH), BFLOAT16), Role.STREAM)
    old = build.declare("old", Type((Dim.T, 72), FLOAT32), Role.STREAM)
    a, b = arg(0), arg(1)
    made = {}
    for name in ("gate", "up", "down"):
        weight = build.declare(f"{name}.weight", Type((72, WIDTH), BFLOAT16), Role.WEIGHT)
        made[name] = build.apply(name, Linear(FLOAT32), x, weight)
    act = build.apply("act", Pointwise(a * b, BFLOAT16), made["gate"], made["up"])
    new = build.apply("new", Pointwise(a + b, FLOAT32), old, made["down"])
    block = build.build([("act", act), ("new", new)])
    caches = ((0, CacheSpec(1, 8, None, BFLOAT16)),)
    return Tiny("long", Graph("long", (block,), (Placement(0, 0),), caches), 16, 64)


def _trial(ops: list[str], depth: int, stages: int, cluster: int, blocks: int = 0) -> Trial:
    model = _long()
    kernel = model.kernel(0, ops, "ring", "decode")
    scenario = min(scenarios("decode", model.positions, 16), key=lambda s: abs(s.tokens - 5))
    tile = {
        "rows": ROWS,
        "outputs": 64,
        "depth": depth,
        "stages": stages,
        "cluster": cluster,
        "blocks": blocks,
    }
    return Trial(model, kernel, tile, scenario, ROWS)


@pytest.mark.parametrize(
    "depth, stages, cluster, blocks",
    [(64, 2, 1, 0), (64, 3, 2, 0), (128, 4, 1, 0), (64, 3, 2, 1), (64, 12, 1, 1), (128, 2, 4, 1)],
)
@pytest.mark.parametrize("ops", [["gate", "up", "act"], ["down", "new"]], ids="+".join)
def test_places_are_used_again(
    ops: list[str], depth: int, stages: int, cluster: int, blocks: int
) -> None:
    assert not _trial(ops, depth, stages, cluster, blocks).problems()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels that fill the place of the step whose products are under way."""
    plain = printed.render

    def render(template: str, **context: object) -> str:
        text = plain(template, **context)
        right = "spare = (number + STAGES - 1) % STAGES"
        assert right in text
        return text.replace(right, "spare = number % STAGES")

    monkeypatch.setattr(printed, "render", render)
    yield
    rings.forget()


@pytest.mark.usefixtures("hasty")
def test_a_place_that_is_filled_too_early_is_found() -> None:
    with pytest.raises(Exception, match="waits for ever"):
        _trial(["down", "new"], 64, 3, 1).problems()
