"""Packed matrices of a sweep mean what the formats' own definition says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernelgen.formats import weight_format
from kernelgen.tune.packed_weights import meant, random_packed, stored_bytes
from kernelgen.verify.packed import random_packed as packed_by_definition

FORMATS = [
    "fp8_tensor", "fp8_channel", "fp8_block128", "mxfp8", "mxfp4", "nvfp4", "int4_g32",
    "int4_g128_f16_zp", "int8_channel", "int3_channel", "int8_g64_zp", "int2_g16_f16",
]  # fmt: skip
# Neither N nor K fills blocks, chunks or groups; and a stack.
SHAPES = [(37, 200), (3, 40, 96)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_codes_are_read_as_they_are_packed(name: str, shape: tuple[int, ...]) -> None:
    kind = weight_format(name)
    wanted, packed = packed_by_definition(kind, shape, "rows", np.random.default_rng(1))
    assert len(packed) == stored_bytes(kind, shape)
    assert torch.equal(meant(kind, shape, torch.from_numpy(packed)), torch.from_numpy(wanted))


@pytest.mark.parametrize("name", FORMATS)
def test_random_ones_are_numbers_of_the_size_of_weights(name: str) -> None:
    kind = weight_format(name)
    made = random_packed(kind, SHAPES[1], "cpu", 3)
    found = meant(kind, SHAPES[1], made)
    assert bool(torch.isfinite(found).all()) and 0.2 < float(found.std() * 96**0.5) < 5
    assert not torch.equal(found[0], found[1]), "experts differ"
    assert torch.equal(made, random_packed(kind, SHAPES[1], "cpu", 3))
