"""The slice map of quantised matrices: each rank's pieces, unpacked, are its part of the matrix."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from format_samples import packed, sample

from kernelgen.codegen.packed import packed_source
from kernelgen.core.errors import UsageError
from kernelgen.formats.announcement import Scheme
from kernelgen.formats.format import weight_format
from kernelgen.formats.packing import PACKINGS
from kernelgen.formats.reference import dequantise
from kernelgen.formats.stored import stored_matrix
from kernelgen.formats.unpack import unpack
from kernelgen.pack.slice_law import cut_range
from kernelgen.pack.slices import slice_map

N, K = 256, 384
SCHEMES = [
    ("fp8_tensor", "float8"),
    ("fp8_channel", "float8"),
    ("fp8_block128", "float8_inv"),
    ("mxfp8", "float8"),
    ("mxfp4", "nibbles"),
    ("nvfp4", "nvfp4_divisor"),
    ("int8_channel", "int8_bytes"),
    ("int4_g128", "packed_int"),
    ("int4_g32_zp", "packed_int"),
    ("int3_g64", "packed_int"),
    ("int4_g128_f16_zp", "gptq"),
    ("int4_g128_f16_zp", "awq"),
]


def manifest_of(kind: str, packing: str, cut: str, unit: int) -> tuple[dict[str, Any], Any]:
    matrix = stored_matrix("m", N, K, Scheme(kind, packing), None)
    along = K if cut == "row" else N
    entry = {
        "name": "m.weight",
        "source": {"packed": packed_source(matrix)},
        "cut": {"kind": cut, "unit": unit, "groups": -(-along // unit), "repeats": False},
    }
    tensors = [{"name": t.name, "shape": list(t.shape)} for t in matrix.tensors]
    return {"name": "toy", "tensors": tensors, "targets": [{"weights": [entry]}]}, matrix


@pytest.mark.row("R-160")
@pytest.mark.parametrize(("kind", "packing"), SCHEMES)
@pytest.mark.parametrize("cut", ["column", "row"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_rank_unpacks_its_part(kind: str, packing: str, cut: str, ranks: int) -> None:
    format_, stored = weight_format(kind), PACKINGS[packing]
    about, matrix = manifest_of(kind, packing, cut, 128)
    parts = packed(format_, stored, sample(format_, N, K))
    whole = dequantise(format_, unpack(format_, stored, parts, N, K))
    if ranks == 3 and cut == "column":
        with pytest.raises(UsageError, match="2 groups of 1 times 128 elements cannot be shared"):
            slice_map(about, ranks)
        return
    for rank in slice_map(about, ranks):
        (weight,) = rank.weights
        held = {}
        for piece in weight.slices:
            if piece.part == "order":  # says that columns are in order, and may be missing
                assert piece.view == (K,) and piece.box == weight.box[1:]
                continue
            array = np.asarray(parts[piece.part]).reshape(piece.view)
            assert tuple(d for d in piece.view if d > 1) == tuple(
                d for d in next(t.shape for t in matrix.tensors if t.name == piece.tensor) if d > 1
            )
            held[piece.part] = array[tuple(slice(*r) for r in piece.box)]
        n, k = weight.shape
        found = dequantise(format_, unpack(format_, stored, held, n, k))
        assert np.array_equal(found, whole[tuple(slice(*r) for r in weight.box)])
        other = {1: [K], 2: [256, 128], 3: [128] * 3} if cut == "row" else {1: [N], 2: [128] * 2}
        mine = other[ranks][rank.tensor]
        assert (n, k) == ((N, mine) if cut == "row" else (mine, K))


@pytest.mark.parametrize(
    ("kind", "packing", "cut", "unit", "told"),
    [
        ("fp8_block128", "float8_inv", "column", 64, "(n): a rank would end at 64"),
        ("int4_g128", "packed_int", "row", 64, "(k): a rank would end at 64"),
        ("int3_g64", "packed_int", "row", 64, ""),
        ("int4_g128_f16_zp", "gptq", "column", 4, "(n): a rank would end at 4"),
    ],
)
def test_a_rank_that_would_split_a_block_is_told(
    kind: str, packing: str, cut: str, unit: int, told: str
) -> None:
    about, _ = manifest_of(kind, packing, cut, unit)
    ranks = (K if cut == "row" else N) // unit
    if not told:
        assert len(slice_map(about, ranks)) == ranks
        return
    with pytest.raises(UsageError) as caught:
        slice_map(about, ranks)
    assert told in str(caught.value) and "take fewer ranks" in str(caught.value)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("size", [1, 7, 96, 211])
@pytest.mark.parametrize("unit", [1, 3, 16])
@pytest.mark.parametrize("each", [1, 2, 3])
def test_ranks_get_runs_that_follow_one_another(
    size: int, unit: int, each: int, repeats: bool
) -> None:
    """Whole units, none left out; as even as can be."""
    units = -(-size // unit)
    groups = -(-units // each)
    for ranks in (1, 2, 3, 4, 8, groups, 2 * groups):
        found = [cut_range(size, unit, groups, ranks, r, repeats) for r in range(ranks)]
        if any(a == b for a, b in found):
            assert ranks > groups
            continue
        assert found[0][0] == 0 and found[-1][1] == size
        assert all(a % unit == 0 and (b % unit == 0 or b == size) for a, b in found)
        for before, after in pairwise(found):
            assert before[1] == after[0] or (repeats and before == after)
        if ranks <= groups:
            counts = [-(-(b - a) // (unit * each)) for a, b in found]
            assert max(counts) - min(counts) <= 1
            assert list(accumulate(counts))[-1] == groups


E, ROWS, COLS = 4, 6, 8
CUT = {"kind": "column", "unit": 1, "groups": ROWS, "repeats": False}
STACK = np.arange(E * 2 * ROWS * COLS).reshape(E, 2 * ROWS, COLS)  # gate above up


def stack_of(how: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """`up` of four experts: in one tensor, the same quantised when it is loaded, or in four."""
    take = {"take": [ROWS, ROWS, 2 * ROWS]}
    if how == "each":
        tensors = {f"experts.{e}.w13": STACK[e] for e in range(E)}
    else:
        tensors = {"gate_up": STACK}
    parts = [{"tensor": t, "rows": E * ROWS // len(tensors), "cols": COLS} | take for t in tensors]
    entry: dict[str, Any] = {"name": "up", "source": "checkpoint", "stack": E, "parts": parts}
    if how == "online":
        packed = {"packing": None, "rows": ROWS, "cols": COLS, "stack": E, **take}
        packed["tensors"] = {"weight": "gate_up"}
        entry = {"name": "up", "source": {"packed": packed}}
    shapes = [{"name": name, "shape": list(t.shape)} for name, t in tensors.items()]
    about = {"name": "toy", "tensors": shapes, "targets": [{"weights": [entry | {"cut": CUT}]}]}
    return about, tensors


@pytest.mark.row("R-160")
@pytest.mark.parametrize("how", ["one", "online", "each"])
@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 1), (1, 2), (1, 3), (2, 4)])
def test_experts_are_dealt_and_cut(how: str, tp: int, ep: int) -> None:
    about, tensors = stack_of(how)
    count = np.zeros((E, ROWS, COLS), int)
    for rank in slice_map(about, tp, ep):
        (weight,) = rank.weights
        mine = tuple(slice(*r) for r in weight.box)
        count[mine] += 1
        out = np.full(weight.shape, -1)
        for piece in weight.slices:
            assert tensors[piece.tensor].shape == piece.view
            found = tensors[piece.tensor][tuple(slice(*r) for r in piece.box)]
            out[piece.at[0] : piece.at[0] + (len(found) if found.ndim == 3 else 1)] = found
        assert np.array_equal(out, STACK[:, ROWS:][mine])
        assert len(weight.slices) == (len(out) if how == "each" else 1)
    assert (count == 1).all()
    with pytest.raises(UsageError, match="4 experts cannot be dealt to 5 ranks"):
        slice_map(about, tp, 5)
