"""Ranks cut first and pack then: each one's bytes are its rows and columns, whatever N they get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from format_samples import packed, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from test_runtime_packed import LAYOUTS, Tensors, as_torch, filled

from kernelgen.codegen.packed import packed_source
from kernelgen.formats import WeightFormat, weight_format
from kernelgen.formats.announcement import Scheme
from kernelgen.formats.packing import PACKINGS
from kernelgen.formats.reference import Quantised
from kernelgen.formats.stored import stored_matrix
from kernelgen.formats.unpack import unpack
from kernelgen.pack.slices import Rank, slice_map
from kernelgen.verify.packed import PACKERS

K = 128
# (format, packing, unit by which rows can be cut)
KINDS = [
    ("fp8_tensor", "float8", 1),
    ("fp8_channel", "float8", 1),
    ("fp8_block128", "float8_inv", 128),
    ("mxfp4", "nibbles", 1),
    ("nvfp4", "nvfp4_divisor", 1),
    ("int4_g32", "packed_int", 1),
    ("int4_g32_zp", "packed_int", 8),
    ("int4_g128_f16_zp", "gptq", 8),
    ("int4_g128_f16_zp", "awq", 8),
    ("int3_g32_f16_zp", "gptq_v2", 32),
]


def of_rank(kind: WeightFormat, parts: Quantised, rows: slice, columns: slice) -> Quantised:
    """The block of a matrix with its scales, as the definition has it."""
    each, group = kind.rows or len(parts.codes), kind.group or parts.codes.shape[1]
    lines = slice(rows.start // each, -(-rows.stop // each))
    groups = slice(columns.start // group, -(-columns.stop // group))
    zero = None if parts.zero is None else parts.zero[rows, groups]
    factor = None if parts.factor is None else parts.factor[rows]
    return Quantised(parts.codes[rows, columns], parts.scale[lines, groups], zero, factor)


def ranks_of(matrix: Any, cut: dict[str, Any], tp: int) -> tuple[Rank, ...]:
    entry = {"name": "m", "source": {"packed": packed_source(matrix)}, "cut": cut}
    tensors = [{"name": t.name, "shape": list(t.shape)} for t in matrix.tensors]
    about = {"name": "toy", "tensors": tensors, "targets": [{"weights": [entry]}]}
    return slice_map(about, tp)


@pytest.mark.row("R-073")
@pytest.mark.parametrize(("name", "packing", "unit"), KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_bytes_of_a_rank(name: str, packing: str, unit: int, data: st.DataObject) -> None:
    """N that no panel of 32 divides, on any number of ranks: what a rank packs of its slices is
    what the definition gives for its part, and the parts are all of the matrix."""
    kind, stored = weight_format(name), PACKINGS[packing]
    units = data.draw(st.integers(1, max(3, 150 // unit)), label="units")
    n, tp = units * unit, data.draw(st.integers(1, min(units, 5)), label="ranks")
    by_rows = data.draw(st.booleans(), label="column cut")
    cut_unit = unit if by_rows else max(kind.group, 32)
    along = n if by_rows else K
    if not by_rows:
        tp = min(tp, along // cut_unit)
    matrix = stored_matrix("m", n, K, Scheme(name, packing), None)
    arrays = packed(kind, stored, sample(kind, n, K, seed=units))
    parts = unpack(kind, stored, arrays, n, K)
    cut = {"kind": "column" if by_rows else "row", "unit": cut_unit, "groups": along // cut_unit,
           "repeats": False}  # fmt: skip
    seen = np.zeros((n, K), int)
    for rank in ranks_of(matrix, cut, tp):
        (weight,) = rank.weights
        rows, columns = (slice(*ends) for ends in weight.box)
        seen[rows, columns] += 1
        mine = stored_matrix("m", *weight.shape, Scheme(name, packing), None)
        held = {}
        for piece in weight.slices:
            if piece.part in arrays and piece.part != "order":
                box = tuple(slice(*ends) for ends in piece.box)
                array = np.asarray(arrays[piece.part]).reshape(piece.view)[box]
                held[mine.names[piece.part]] = as_torch(np.ascontiguousarray(array))
        wanted = of_rank(kind, parts, rows, columns)
        for layout in LAYOUTS:
            found = filled(mine, layout, Tensors(held))
            assert np.array_equal(found, PACKERS[layout](kind, wanted))
    assert (seen == 1).all()
