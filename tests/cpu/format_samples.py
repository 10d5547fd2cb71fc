"""Owns packing a quantised matrix as each producer stores it: the way back from `unpack`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelgen.formats import WeightFormat
from kernelgen.formats.packing import PACKINGS, Packing
from kernelgen.formats.reference import Quantised, quantise
from kernelgen.formats.scales import stored_scales
from kernelgen.formats.streams import pack_awq, pack_nibbles, pack_stream


def with_zeros(kind: WeightFormat, parts: Quantised, seed: int = 1) -> Quantised:
    """The parts with random zero points; what they stand for is another matrix."""
    rng = np.random.default_rng(seed)
    shape = (parts.codes.shape[0], parts.scale.shape[1])
    high = 1 << kind.code.bits
    return Quantised(parts.codes, parts.scale, rng.integers(1, high, shape).astype(np.uint8))


def sample(kind: WeightFormat, n: int, k: int, seed: int = 0) -> Quantised:
    """A normal matrix in a format, with random zero points where it has some."""
    from dataclasses import replace

    matrix = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)
    if kind.zero:
        return with_zeros(kind, quantise(replace(kind, zero=False), matrix))
    return quantise(kind, matrix)


def packed(kind: WeightFormat, packing: Packing, parts: Quantised) -> dict[str, Any]:
    """Arrays by part as a checkpoint holds them."""
    bits, codes = kind.code.bits, parts.codes
    if packing.arrangement == "awq":
        stored = pack_awq(codes.T)
    elif packing.arrangement == "nibbles":
        stored = pack_nibbles(codes)
    elif packing.arrangement == "signed":
        stored = (codes ^ np.uint8(0x80)).view(np.int8)
    elif packing.arrangement == "bytes":
        stored = codes
    elif packing.transposed:
        stored = np.ascontiguousarray(pack_stream(codes.T.T, bits).T)
    else:
        stored = pack_stream(codes, bits)
    scale = parts.scale.T if packing.transposed else parts.scale
    found = {"codes": stored, "scale": stored_scales(np.ascontiguousarray(scale), kind.scale)}
    if parts.zero is not None:
        zeros = parts.zero.T - np.uint8(packing.zero_bias)
        zeros = np.ascontiguousarray(zeros)
        if packing.arrangement == "awq":
            found["zero"] = pack_awq(zeros)
        else:
            stream = pack_stream(zeros, bits)
            found["zero"] = stream if packing.transposed else np.ascontiguousarray(stream.T)
    if parts.factor is not None:
        one = parts.factor[:1]
        found["factor"] = np.float32(1) / one if packing.factor_divides else one
    if packing.order and packing.transposed:
        group = codes.shape[1] if kind.group == 0 else kind.group
        found["order"] = (np.arange(codes.shape[1]) // group).astype(np.int32)
    return found


SAMPLES = [
    ("fp8_tensor", "float8"),
    ("fp8_channel", "float8"),
    ("fp8_block128", "float8_inv"),
    ("mxfp8", "float8"),
    ("mxfp4", "nibbles"),
    ("mxfp4", "nibbles_plain"),
    ("mxfp4", "nibbles_blocks"),
    ("nvfp4", "nvfp4_divisor"),
    ("nvfp4", "nvfp4_factor"),
    ("int4_g32", "packed_int"),
    ("int4_g128", "packed_int"),
    ("int4_g32_zp", "packed_int"),
    ("int8_g128", "packed_int"),
    ("int4_channel", "packed_int"),
    ("int8_channel", "int8_bytes"),
    ("int4_g128_f16", "gptq"),
    ("int4_g128_f16_zp", "gptq"),
    ("int4_g32_f16_zp", "gptq_v2"),
    ("int4_g128_f16_zp", "awq"),
    *((f"int{bits}_g32_f16_zp", "gptq_v2") for bits in (2, 3, 5, 6, 7)),
    *((f"int{bits}_g128_f16", "gptq") for bits in (2, 3, 5, 6, 7, 8)),
]
"""(format, packing): what the producers of today write"""
assert {packing for _, packing in SAMPLES} == set(PACKINGS) - {"float8_short"}
