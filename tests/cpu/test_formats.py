"""Weight formats: code points, published golden bytes, packings there and back, rounding rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from format_samples import SAMPLES, packed, sample

from kernelgen.core.errors import KernelgenError
from kernelgen.formats import weight_format
from kernelgen.formats.codes import CODES, E2M1, E4M3
from kernelgen.formats.packing import PACKINGS
from kernelgen.formats.reference import Quantised, dequantise, quantise
from kernelgen.formats.scales import SCALE_TYPES, nearest_e4m3, scale_values, stored_scales
from kernelgen.formats.streams import (
    AWQ_ORDER,
    pack_awq,
    pack_nibbles,
    pack_stream,
    unpack_awq,
    unpack_stream,
)
from kernelgen.formats.unpack import unpack

STREAMS = {
    2: "39393939 39393939",
    3: "f19d50f1 50f19d50 9d50f19d",
    4: "4fa50b61 c72d83e9 4fa50b61 c72d83e9",
    5: "f5582cc1 dc4dc927 6ed161c5 d9a3d450 e5e4d40f",
    6: "9540b181 3ba991f6 3070bde3 a581b591 3fb9d2fa 71748d20",
    7: "5202c301 29487cd1 13d70cd7 eb51991e bf565c16 00ff79e9 385c90d1",
    8: "100b0601 241f1a15 38332e29 4c47423d 605b5651 746f6a65 88837e79 9c97928d",
}


@pytest.mark.row("R-070")
@pytest.mark.parametrize("bits", STREAMS)
def test_stream_golden(bits: int) -> None:
    codes = ((5 * np.arange(32) + 1) % (1 << bits)).astype(np.uint8)
    words = np.array([int(w, 16) for w in STREAMS[bits].split()], np.uint32).view(np.int32)
    assert pack_stream(codes, bits).tolist() == words.tolist()
    assert unpack_stream(words, bits, 32).tolist() == codes.tolist()


@pytest.mark.row("R-070")
@pytest.mark.parametrize("bits", STREAMS)
def test_every_code_at_every_place_of_a_word(bits: int) -> None:
    for code in range(1 << bits):
        codes = np.eye(33, dtype=np.uint8) * np.uint8(code)
        assert np.array_equal(unpack_stream(pack_stream(codes, bits), bits, 33), codes)


def test_e2m1_golden_bytes() -> None:
    values = np.array([[0.5, -1.5, 6, 0, 3, -4, 1, -0.0] * 4], np.float32)
    parts = quantise(weight_format("mxfp4"), values)
    assert pack_nibbles(parts.codes)[0, :4].tolist() == [0xB1, 0x07, 0xE5, 0x82]
    assert parts.scale.tolist() == [[1.0]]


def test_code_points() -> None:
    assert E2M1.values[:8] == (0, 0.5, 1, 1.5, 2, 3, 4, 6) and math.copysign(1, E2M1.values[8]) < 0
    every = torch.arange(256, dtype=torch.uint8)
    theirs = every.view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(np.array(E4M3.values, np.float32), theirs, equal_nan=True)
    assert E4M3.largest == 448 and E2M1.largest == 6
    assert CODES["int3"].values == (-4, -3, -2, -1, 0, 1, 2, 3)


def test_e2m1_rounds_ties_to_even_and_saturates() -> None:
    edges = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 5.01, 6.9]
    want = [0, 1, 1, 2, 2, 4, 4, 6, 6]
    kind = weight_format("mxfp4")
    row = np.array([[*edges, 6.0] + [-e for e in edges] + [0.0] * 13], np.float32)
    found = dequantise(kind, Quantised(quantise(kind, row).codes, np.ones((1, 1), np.float32)))
    assert np.abs(found[0, :9]).tolist() == want
    assert found[0, 10:19].tolist() == [-w for w in want]


def test_e4m3_rounds_like_torch_and_saturates() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(4096) * 10.0 ** rng.uniform(-5, 3, 4096)).astype(np.float32)
    x[:5] = [449, 1e9, -np.inf, 2.0**-10, -(2.0**-9) * 1.5]
    theirs = torch.from_numpy(x).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    assert np.array_equal(nearest_e4m3(x), theirs.numpy())


def test_e8m0_all_codes() -> None:
    every = np.arange(256, dtype=np.uint8)
    values = scale_values(every, SCALE_TYPES["e8m0"])
    assert values[0] == 2.0**-127 and values[127] == 1 and np.isnan(values[255])
    assert np.array_equal(stored_scales(values[:255], SCALE_TYPES["e8m0"]), every[:255])


@pytest.mark.parametrize(
    ("amax", "byte"), [(1, 125), (1.74, 125), (1.75, 126), (3.99, 127), (6, 127), (6.99, 127),
                       (7, 128), (7.1, 128)]
)  # fmt: skip
def test_mxfp4_scale_rule(amax: float, byte: int) -> None:
    scale = quantise(weight_format("mxfp4"), np.full((1, 32), amax, np.float32)).scale
    assert stored_scales(scale, SCALE_TYPES["e8m0"]).item() == byte


def test_mxfp8_scale_never_saturates() -> None:
    for amax, power in [(448, 0), (449, 1), (448 * 4, 2), (447, 0), (224, -1), (1, -8)]:
        scale = quantise(weight_format("mxfp8"), np.full((1, 32), amax, np.float32)).scale
        assert scale.item() == 2.0**power, amax


def test_nvfp4_worked_example() -> None:
    row = np.zeros((1, 32), np.float32)
    row[0, :4], row[0, 16] = (3, -1.5, 0.6, 0.1), 6
    parts = quantise(weight_format("nvfp4"), row)
    assert parts.factor is not None and parts.factor[0] == np.float32(6 / 2688)
    assert parts.scale[0, 0] == 224 and parts.codes[0, :4].tolist() == [7, 13, 2, 0]


def test_awq_order() -> None:
    word = pack_awq(np.arange(8, dtype=np.uint8))[0]
    assert [(word >> 4 * j) & 15 for j in range(8)] == list(AWQ_ORDER)
    codes = np.random.default_rng(0).integers(0, 16, (3, 40)).astype(np.uint8)
    assert np.array_equal(unpack_awq(pack_awq(codes), 40), codes)


@pytest.mark.row("R-068")
@pytest.mark.parametrize(("name", "packing"), SAMPLES)
def test_packings_there_and_back(name: str, packing: str) -> None:
    kind, how, n, k = weight_format(name), PACKINGS[packing], 64, 256
    parts = sample(kind, n, k)
    found = unpack(kind, how, packed(kind, how, parts), n, k)
    assert np.array_equal(found.codes, parts.codes)
    assert np.array_equal(found.scale, parts.scale)
    assert (found.zero is None) == (parts.zero is None)
    assert parts.zero is None or np.array_equal(found.zero, parts.zero)
    if parts.factor is not None:
        assert np.allclose(found.factor, parts.factor, rtol=1e-6)


def test_divisor_and_factor_are_one_matrix() -> None:
    kind = weight_format("nvfp4")
    parts = sample(kind, 32, 64)
    pair = [
        dequantise(kind, unpack(kind, PACKINGS[p], packed(kind, PACKINGS[p], parts), 32, 64))
        for p in ("nvfp4_divisor", "nvfp4_factor")
    ]
    assert np.allclose(pair[0], pair[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("name", "percent"),
    [("fp8_tensor", 2.65), ("fp8_channel", 2.65), ("fp8_block128", 2.65), ("mxfp8", 2.66),
     ("mxfp4", 11.2), ("nvfp4", 9.5), ("int8_g128", 0.65), ("int4_g32", 9.5), ("int4_g128", 11.1),
     ("int3_g32", 20.3), ("int2_g128", 55), ("int5_g32", 4.6), ("int6_g128", 2.6),
     ("int7_g128", 1.3)],
)  # fmt: skip
def test_error_on_gaussian_weights(name: str, percent: float) -> None:
    matrix = np.random.default_rng(7).standard_normal((512, 4096)).astype(np.float32)
    kind = weight_format(name)
    off = dequantise(kind, quantise(kind, matrix)) - matrix
    found = 100 * float(np.sqrt(np.square(off).mean() / np.square(matrix).mean()))
    assert abs(found - percent) <= 0.06 * percent, found


@pytest.mark.parametrize("name", ["fp8_channel", "fp8_block128", "mxfp4", "mxfp8", "nvfp4",
                                  "int4_g32", "int8_channel", "int3_g128_f16"])  # fmt: skip
def test_zeros_stay_zeros(name: str) -> None:
    kind = weight_format(name)
    matrix = np.zeros((130, 200), np.float32)
    matrix[0, 0] = 1
    found = dequantise(kind, quantise(kind, matrix))
    assert not found[1:].any() and np.isfinite(found).all()


@pytest.mark.parametrize("wrong", [0.0, np.nan, np.inf, -1.0])
def test_scales_that_are_none(wrong: float) -> None:
    kind, how = weight_format("int4_g32_f16"), PACKINGS["gptq"]
    tensors = packed(kind, how, sample(kind, 32, 64))
    tensors["scale"][1, 3] = wrong
    with pytest.raises(KernelgenError, match=r"scale at \(3, 1\)"):
        unpack(kind, how, tensors, 32, 64)


@pytest.mark.row("R-071")
def test_activation_order_is_refused() -> None:
    kind, how = weight_format("int4_g32_f16"), PACKINGS["gptq"]
    tensors = packed(kind, how, sample(kind, 32, 64))
    tensors["order"] = tensors["order"][::-1].copy()
    with pytest.raises(KernelgenError, match="desc_act = false"):
        unpack(kind, how, tensors, 32, 64)


@pytest.mark.parametrize("name", ["int9_g32", "int4_g48", "fp8", "int4", "int4_channel_zp", "bf16"])
def test_unknown_formats_are_named(name: str) -> None:
    with pytest.raises(KernelgenError, match=rf"'{name}' is not known \(allowed: fp8_tensor"):
        weight_format(name)
