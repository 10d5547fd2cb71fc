"""Tiles of packed products: what tensor cores cannot multiply is refused before it is compiled."""

from __future__ import annotations

import pytest

from kernelgen.codegen.families.triton_packed import PackedTile
from kernelgen.codegen.families.triton_product import Product
from kernelgen.hw import parse_target

H200 = parse_target("sm_90:h200")


def _product(bits: int, k: int) -> Product:
    return Product(
        rows=16,
        k=k,
        groups=((256, 1),),
        row_bits=16,
        read_bits=16,
        weight_bits=bits,
        math="bfloat16",
        prep=None,
        finish_ops=2,
        bytes=1 << 20,
        flops=1 << 20,
    )


@pytest.mark.parametrize(
    ("bits", "depth", "legal"), [(4, 64, False), (4, 128, True), (8, 64, True), (8, 32, False)]
)
def test_a_step_holds_enough_words_of_codes(bits: int, depth: int, legal: bool) -> None:
    tile = PackedTile(rows=16, outputs=64, depth=depth, stages=3, warps=4)
    told = [p for p in tile.problems(_product(bits, 1024), H200) if "words of codes" in p]
    assert bool(told) is not legal


def test_a_short_row_has_a_tile() -> None:
    tile = PackedTile(rows=16, outputs=64, depth=128, stages=3, warps=4)
    assert tile.problems(_product(4, 40), H200) == ()
