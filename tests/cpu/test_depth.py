"""The mixture over depth: its meaning, its shapes, its place in plans, its C++."""

from __future__ import annotations

import math

import pytest
import torch

from kernelgen.core.dtypes import BFLOAT16, FLOAT32
from kernelgen.ir.graph import BlockBuilder
from kernelgen.ir.types import Dim, Sizes, Type
from kernelgen.lower.depth import closed_stream, depth_mix
from kernelgen.lower.scope import Numerics, Scope
from kernelgen.ops import DepthMix

WIDTH = 12
ROW, VECTOR = Type((Dim.T, WIDTH), FLOAT32), Type((WIDTH,), FLOAT32)
OP = DepthMix(1e-5, FLOAT32)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.row("R-026")
@pytest.mark.parametrize("count", [1, 2, 9])
def test_each_row_is_mixed_by_what_its_sources_say(count: int) -> None:
    """Number by number; what is mixed are the sources, not what has been normed."""
    sources = [random(3, WIDTH, seed=s) * 2.0**s for s in range(count)]
    norm, probe = random(WIDTH, seed=20), random(WIDTH, seed=21)
    (made,) = OP.reference([*sources, norm, probe], None)
    for t in range(3):
        rows = [s[t].tolist() for s in sources]
        scores = [
            sum(v * n * p for v, n, p in zip(row, norm.tolist(), probe.tolist(), strict=True))
            / math.sqrt(sum(v * v for v in row) / WIDTH + 1e-5)
            for row in rows
        ]
        powers = [math.exp(score - max(scores)) for score in scores]
        for i in range(WIDTH):
            wanted = sum(p * row[i] for p, row in zip(powers, rows, strict=True)) / sum(powers)
            assert float(made[t, i]) == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_one_source_is_itself() -> None:
    source = random(4, WIDTH)
    (made,) = OP.reference([source, random(WIDTH, seed=1), random(WIDTH, seed=2)], None)
    assert torch.allclose(made, source, rtol=1e-14, atol=0)


def test_shapes_and_cost() -> None:
    assert OP.infer([ROW, ROW, ROW, VECTOR, VECTOR]) == (ROW,)
    assert DepthMix(1e-5, BFLOAT16).infer([ROW, VECTOR, VECTOR])[0].dtype == BFLOAT16
    sizes = Sizes(4, 4, 16)
    assert OP.flops([ROW, ROW, VECTOR, VECTOR], sizes) == 6 * 2 * 4 * WIDTH
    other = Type((Dim.T, WIDTH + 1), FLOAT32)
    for wrong in (
        [VECTOR, VECTOR],
        [ROW, other, VECTOR, VECTOR],
        [ROW, VECTOR, Type((3,), FLOAT32)],
    ):
        with pytest.raises(ValueError, match="depth_mix"):
            OP.infer(wrong)


def test_sources_are_the_closed_blocks_then_the_open_one() -> None:
    """A layer that closes a block has its sum before what it opens."""
    scope = Scope(BlockBuilder("mix"), Numerics.of(BFLOAT16, BFLOAT16), {})
    x, opened = scope.stream(WIDTH), scope.stream(WIDTH, "opened")
    depth_mix(scope, "plain", x, 2, 1e-5)
    depth_mix(scope, "closing", opened, 2, 1e-5, newest=x)
    block = scope.builder.build([("x", "closing")])
    closed = [closed_stream(0), closed_stream(1)]
    assert [node.inputs[:-2] for node in block.nodes] == [(*closed, "x"), (*closed, "x", "opened")]
