"""How weights are cut among ranks: what may be shared, in which units, and what stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernelgen.codegen.cut_axes import Cut
from kernelgen.codegen.cuts import weight_cuts
from kernelgen.core.dtypes import BFLOAT16, FLOAT32
from kernelgen.formats.format import weight_format
from kernelgen.ir.expr import arg, call
from kernelgen.ir.graph import BlockBuilder, Graph, Placement, Role
from kernelgen.ir.types import Dim, Type
from kernelgen.ops import Linear, Pointwise, RowReduce, View
from kernelgen.pack.slices import slice_map
from kernelgen.report.slices_text import slices_text

WIDTH, INNER = 64, 96
Lower = Callable[["Toy"], str]


class Toy:
    """A block under construction, `x` its stream."""

    def __init__(self, dtype: Any = BFLOAT16) -> None:
        self.builder, self.dtype = BlockBuilder("toy"), dtype
        self.x = self.builder.declare("x", Type((Dim.T, WIDTH), FLOAT32), Role.STREAM)

    def product(self, name: str, x: str, outputs: int) -> str:
        inputs = self.builder.type_of(x).row_width
        weight = self.builder.declare(name, Type((outputs, inputs), self.dtype), Role.WEIGHT)
        return self.builder.apply(f"{name}.out", Linear(FLOAT32), x, weight)

    def pointwise(self, name: str, expr: Any, *inputs: str) -> str:
        return self.builder.apply(name, Pointwise(expr, FLOAT32), *inputs)

    def cuts(self, result: str, stream: str = "x") -> dict[str, Cut]:
        block = self.builder.build([(stream, result)])
        return weight_cuts(Graph("toy", (block,), (Placement(0, None),)))


def pair(toy: Toy) -> str:
    gate, up = toy.product("gate", toy.x, INNER), toy.product("up", toy.x, INNER)
    return toy.product("down", toy.pointwise("act", arg(0) * arg(1), gate, up), WIDTH)


def with_scalar(toy: Toy) -> str:
    """A number for each row, made by a product, times what is wide."""
    up, one = toy.product("up", toy.x, INNER), toy.product("one", toy.x, 1)
    return toy.product("down", toy.pointwise("act", arg(0) * arg(1), up, one), WIDTH)


def with_whole(toy: Toy) -> str:
    """The stream itself is one factor: nobody has parts of it."""
    up = toy.product("up", toy.x, WIDTH)
    return toy.product("down", toy.pointwise("act", arg(0) * arg(1), up, toy.x), WIDTH)


def with_norm(toy: Toy) -> str:
    """A norm over all outputs of a product needs all of them in one place."""
    up = toy.product("up", toy.x, INNER)
    stat = toy.builder.apply("stat", RowReduce("mean", arg(0) * arg(0)), up)
    scaled = toy.pointwise("act", arg(0) * call("rsqrt", arg(1)), up, stat)
    return toy.product("down", scaled, WIDTH)


def half(toy: Toy) -> str:
    """Gate above up in one product: a run of it is not half of each."""
    both = toy.product("up", toy.x, 2 * INNER)
    parts = [toy.builder.apply(f"v{i}", View((INNER,), i * INNER), both) for i in (0, 1)]
    return toy.product("down", toy.pointwise("act", arg(0) * arg(1), *parts), WIDTH)


@pytest.mark.parametrize(
    ("lower", "cut", "row"),
    [
        (pair, {"gate", "up"}, True),
        (with_scalar, {"up"}, True),
        (with_whole, set(), False),
        (with_norm, set(), False),
        (half, set(), False),
    ],
)
def test_a_product_is_cut_where_its_readers_can_do_with_parts(
    lower: Lower, cut: set[str], row: bool
) -> None:
    toy = Toy()
    found = {name: c.kind for name, c in toy.cuts(lower(toy)).items()}
    down = {"down": "row"} if row else {}
    assert found == {name: "column" for name in cut} | down


def test_what_goes_on_to_the_next_block_is_whole() -> None:
    toy = Toy()
    assert toy.cuts(toy.product("only", toy.x, WIDTH)) == {}


def test_what_leaves_the_model_is_gathered() -> None:
    toy = Toy()
    logits = toy.product("head", toy.x, 211)
    assert toy.cuts(logits, "logits") == {"head": Cut("vocabulary", 1, 211)}


@pytest.mark.parametrize(
    ("kind", "unit"),
    [("fp8_tensor", 1), ("fp8_block128", 128), ("mxfp8", 32), ("int4_g64", 64), ("int3_g32", 32)],
)
def test_units_hold_whole_blocks_of_a_format(kind: str, unit: int) -> None:
    """One unit for gate, up and down: a rank's columns of `down` are its rows of the others."""
    toy = Toy(weight_format(kind))
    cuts = toy.cuts(pair(toy))
    assert {(c.unit, c.groups) for c in cuts.values()} == {(unit, -(-INNER // unit))}


def test_a_build_from_before_is_told() -> None:
    from kernelgen.core.errors import UsageError

    weight = {"name": "w", "source": "checkpoint", "parts": [{"tensor": "w", "rows": 4, "cols": 4}]}
    about: dict[str, Any] = {"name": "old", "tensors": [{"name": "w", "shape": [4, 4]}]}
    about["targets"] = [{"weights": [weight]}]
    assert "[:, :]" in slices_text("old", slice_map(about))
    with pytest.raises(UsageError, match="does not say how weights are cut; build it again"):
        slice_map(about, 2)
    del weight["parts"]
    with pytest.raises(UsageError, match="not described as this version does"):
        slice_map(about)
