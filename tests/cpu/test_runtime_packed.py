"""The runtime's packed weights: the bytes of the definition, from every packing and float."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from format_samples import SAMPLES, packed, sample
from kernelgen_runtime.artifact.fields import Fields
from kernelgen_runtime.artifact.sections import read_weight
from kernelgen_runtime.errors import WeightsError
from kernelgen_runtime.weights.layout import fill

from kernelgen.codegen.packed import packed_source
from kernelgen.codegen.weights import packed_shape
from kernelgen.core.errors import UnsupportedError
from kernelgen.formats import WeightFormat, weight_format
from kernelgen.formats.announcement import Scheme
from kernelgen.formats.format import FIXED
from kernelgen.formats.packing import PACKINGS
from kernelgen.formats.reference import Quantised, quantise
from kernelgen.formats.stored import StoredMatrix, online_matrix, online_part, stored_matrix
from kernelgen.formats.stored_stack import stored_experts, stored_part
from kernelgen.verify.packed import PACKERS

TYPES = {"float16": "F16", "float32": "F32", "int32": "I32", "int8": "I8", "uint8": "U8"}
LAYOUTS = ("panel", "rows")


class Tensors:
    """A source over torch tensors by name; `peak` is the largest read in bytes."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors, self.peak = tensors, 0
        self.entries = {
            name: (TYPES.get(str(t.dtype).removeprefix("torch."), "BF16"), tuple(t.shape))
            for name, t in tensors.items()
        }

    def rows(self, name: str, first: int, count: int, cols: int) -> torch.Tensor:
        found = self.tensors[name].reshape(-1, cols)[first : first + count]
        assert len(found) == count
        self.peak = max(self.peak, found.numel() * found.element_size())
        return found


def as_torch(array: Any) -> torch.Tensor:
    """bfloat16 arrives as uint16."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))


def filled(matrix: StoredMatrix, layout: str, source: Tensors, block_bytes: int = 4096) -> Any:
    stack = (matrix.stack,) if matrix.stack > 1 else ()
    shape = packed_shape(matrix.kind, (*stack, matrix.n, matrix.k), layout)
    problems: list[str] = []
    entry = {"name": "w", "dtype": "uint8", "shape": list(shape), "layout": layout}
    entry["source"] = {"packed": packed_source(matrix)}
    weight = read_weight(Fields(entry, "", problems))
    assert not problems, problems
    out = torch.zeros(shape, dtype=torch.uint8)
    fill(weight, source, out, block_bytes)
    return out.numpy()


def checkpoint(name: str, packing: str, n: int, k: int) -> tuple[StoredMatrix, Any, Tensors]:
    kind = weight_format(name)
    matrix = stored_matrix("m", n, k, Scheme(name, packing), None)
    parts = sample(kind, n, k)
    assert matrix.packing is not None
    arrays = packed(kind, matrix.packing, parts)
    return matrix, parts, Tensors({matrix.names[p]: as_torch(a) for p, a in arrays.items()})


@pytest.mark.row("R-070")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "packing"), SAMPLES)
def test_checkpoints_become_the_bytes_of_the_definition(
    name: str, packing: str, layout: str
) -> None:
    matrix, parts, source = checkpoint(name, packing, 320, 256)
    found = filled(matrix, layout, source)
    if matrix.packing is not None and matrix.packing.factor_divides:
        parts.factor[:] = np.float32(1) / (np.float32(1) / parts.factor[0])
    assert np.array_equal(found, PACKERS[layout](matrix.kind, parts))


ONLINE = [*FIXED, "int4_g32", "int4_g128", "int8_g128", "int8_channel", "int3_g64", "int6_g32_f16"]


@pytest.mark.row("R-063")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ONLINE)
def test_quantised_at_load_as_defined(name: str, layout: str) -> None:
    kind, n, k = weight_format(name), 300, 200
    plain = torch.randn(n, k, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    plain[5] = 0
    found = filled(online_matrix("m", n, k, kind), layout, Tensors({"m.weight": plain}))
    parts = quantise(kind, plain.float().numpy())
    assert np.array_equal(found, PACKERS[layout](kind, parts))


@pytest.mark.parametrize("name", ["nvfp4", "int4_g32", "fp8_tensor"])
def test_reads_stay_small(name: str) -> None:
    plain = torch.randn(4096, 128)
    source = Tensors({"m.weight": plain})
    filled(online_matrix("m", 4096, 128, weight_format(name)), "panel", source, 1 << 16)
    assert source.peak <= 1 << 16


@pytest.mark.parametrize("wrong", [0.0, float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize(
    ("name", "packing"),
    [("int4_g32", "packed_int"), ("fp8_channel", "float8"), ("int4_g128_f16", "gptq")],
)
def test_scales_that_are_none(name: str, packing: str, wrong: float) -> None:
    matrix, _, source = checkpoint(name, packing, 256, 256)
    source.tensors[matrix.names["scale"]].view(-1)[17] = wrong
    with pytest.raises(WeightsError, match=r"m\.(weight_)?scales?'?: scale \[\d+, \d+\] is"):
        filled(matrix, "panel", source)


def test_e8m0_nan_is_refused() -> None:
    matrix, _, source = checkpoint("mxfp4", "nibbles", 128, 128)
    source.tensors[matrix.names["scale"]].view(-1)[3] = 255
    with pytest.raises(WeightsError, match="is nan"):
        filled(matrix, "panel", source)


@pytest.mark.row("R-071")
def test_activation_order() -> None:
    matrix, parts, source = checkpoint("int4_g128_f16", "gptq", 128, 256)
    order = source.tensors["m.g_idx"]
    assert np.array_equal(filled(matrix, "rows", source), PACKERS["rows"](matrix.kind, parts))
    order[:] = order.flip(0)
    with pytest.raises(WeightsError, match="desc_act = false"):
        filled(matrix, "rows", source)


@pytest.mark.row("R-063")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "fp8_tensor", "fp8_block128", "int4_g32"])
def test_stacks_are_quantised_matrix_by_matrix(name: str, layout: str) -> None:
    """Gate above up in one tensor: each matrix has scales of its own, and of the larger half's rows
    nothing comes to the other."""
    kind, experts, n, k = weight_format(name), 3, 150, 96
    made = torch.Generator().manual_seed(4)
    plain = torch.randn(experts, 2 * n, k, generator=made) * torch.tensor([1.0, 30.0, 0.1])[
        :, None, None
    ]  # fmt: skip
    plain[:, :n] *= 7
    source = Tensors({"gate_up": plain})
    for first in (0, n):
        matrix = online_part("gate_up", (experts, n, k), (first, n, 2 * n), kind)
        assert matrix.tensors[0].shape == plain.shape
        wanted = [
            PACKERS[layout](kind, quantise(kind, one.numpy()))
            for one in plain[:, first : first + n]
        ]
        for block_bytes in (1, 1 << 20):
            found = filled(matrix, layout, source, block_bytes)
            assert np.array_equal(found, np.concatenate(wanted))


@pytest.mark.parametrize(
    ("scheme", "changes", "told"),
    [
        (("int4_g128_f16", "gptq"), {"stack": 2}, "packing: must be by rows"),
        (("int4_g32_zp", "packed_int"), {"stack": 2}, "packing: must be by rows"),
        (("mxfp4", "nibbles"), {"take": [0, 64, 128]}, "take: must have whole matrices of packed"),
        (("fp8_block128", "float8"), {"take": [64, 128, 256]}, "take: must begin and end with"),
        (("mxfp4", "nibbles"), {"each": True, "stack": 2}, "each: is for tensors whose names hold"),
    ],
)
def test_what_no_rows_can_be_read_of(scheme: Any, changes: dict[str, Any], told: str) -> None:
    matrix = stored_matrix("m", 128, 256, Scheme(*scheme), None)
    entry = {"name": "w", "dtype": "uint8", "shape": [1], "layout": "rows"}
    problems: list[str] = []
    source = {"packed": packed_source(matrix) | changes}
    read_weight(Fields(entry | {"source": source}, "", problems))
    assert any(told in p for p in problems), problems


TOGETHER = [s for s in SAMPLES if s[1] not in ("gptq", "gptq_v2", "awq") and "_zp" not in s[0]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("name", "packing"), SAMPLES)
def test_stacks_of_a_checkpoint(name: str, packing: str, together: bool, layout: str) -> None:
    """Gate above up in one tensor of all experts, or every matrix by itself."""
    experts, n, k, kind = 3, 128, 256, weight_format(name)
    stored = PACKINGS[packing]
    if together and (name, packing) not in TOGETHER:
        with pytest.raises(UnsupportedError, match="rows of several matrices"):
            stored_part("gate_up", (experts, n, k), (0, n, 2 * n), Scheme(name, packing), None)
        return
    rows = 2 * n if together else n
    parts = [sample(kind, rows, k, seed=e) for e in range(experts)]
    arrays = [packed(kind, stored, one) for one in parts]
    if not together:
        matrix = stored_experts("experts.{expert}.w1", experts, n, k, Scheme(name, packing), None)
        tensors = {
            matrix.names[p].replace("{expert}", str(e)): as_torch(a)
            for e, one in enumerate(arrays)
            for p, a in one.items()
        }
        assert set(tensors) <= {t.name for t in matrix.files}
        wanted = np.concatenate([PACKERS[layout](kind, one) for one in parts])
        assert np.array_equal(filled(matrix, layout, Tensors(tensors)), wanted)
        return
    for first in (0, n):
        take = (first, n, 2 * n)
        matrix = stored_part("gate_up", (experts, n, k), take, Scheme(name, packing), None)
        source = Tensors(
            {
                matrix.names[p]: as_torch(np.stack([one[p] for one in arrays]))
                for p in arrays[0]
                if p in matrix.names
            }
        )
        for tensor in matrix.tensors:
            assert source.tensors[tensor.name].numel() == math.prod(tensor.shape)
        each = [rows_of(kind, one, first, n) for one in parts]
        wanted = np.concatenate([PACKERS[layout](kind, one) for one in each])
        for block_bytes in (1, 1 << 20):
            found = filled(matrix, layout, source, block_bytes)
            assert np.array_equal(found, wanted)


def rows_of(kind: WeightFormat, parts: Quantised, first: int, count: int) -> Quantised:
    """Rows of a matrix with the scales that they have in it."""
    each = kind.rows or len(parts.codes)
    scale = parts.scale[first // each : -(-(first + count) // each)]
    factor = None if parts.factor is None else parts.factor[first : first + count]
    return Quantised(parts.codes[first : first + count], scale, None, factor)
