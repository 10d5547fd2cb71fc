"""Quantised experts on the CPU against dequantise-then-float64, pair by pair and sorted."""

from __future__ import annotations

import pytest
from moe_blocks import Shape, built, operands, wrong

from kernelgen.core.dtypes import BFLOAT16, FLOAT32, DType
from kernelgen.verify.compare import different

FORMATS = ("nvfp4", "fp8_channel", "mxfp4", "int4_g32", "fp8_block128")
KINDS: tuple[DType, ...] = (FLOAT32, BFLOAT16)
CASES = [(name, KINDS[i % 2]) for i, name in enumerate(FORMATS)]


def shape_of(kind: str) -> Shape:
    """Columns fill no panel; K fills groups, and where a format lets it, no block of them."""
    if kind.startswith("fp8"):
        return Shape(hidden=150, inner=45, shared=0, format=kind)
    return Shape(hidden=192, inner=64, shared=33, format=kind)


@pytest.mark.row("R-068")
@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_kernels_are_right(kind: str, dtype: DType) -> None:
    shape = shape_of(kind)
    made = built(shape, dtype)
    for tokens in (1, 3, 130):
        given = operands(made, shape, tokens, seed=tokens)
        first = made.run(made.plans[0], given)
        assert wrong(made, given, first, shape) == 0
        assert different(first, made.run(made.plans[1], given)) == 0
