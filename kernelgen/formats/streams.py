"""Owns packed integers: the little-endian bit stream and the order of AWQ, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint8]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""nibble j of a word holds column AWQ_ORDER[j] of its eight"""


def pack_stream(codes: Codes, bits: int) -> npt.NDArray[np.int32]:
    """`[…, L]` codes below 2^bits as int32 words `[…, ⌈L·bits/32⌉]`: element i takes the stream's
    bits i·bits … and words fill from their lowest bit."""
    planes = (codes[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    stream = planes.reshape(*codes.shape[:-1], -1)
    stream = np.pad(stream, [(0, 0)] * (stream.ndim - 1) + [(0, -stream.shape[-1] % 32)])
    packed = np.packbits(stream.astype(np.uint8), axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<i4").astype(np.int32)


def unpack_stream(words: npt.NDArray[Any], bits: int, count: int) -> Codes:
    """The inverse: the first `count` codes along the last axis."""
    octets = np.ascontiguousarray(words.astype("<i4")).view(np.uint8)
    stream = np.unpackbits(octets, axis=-1, bitorder="little", count=count * bits)
    planes = stream.reshape(*words.shape[:-1], count, bits)
    codes: Codes = (planes << np.arange(bits, dtype=np.uint8)).sum(-1).astype(np.uint8)
    return codes


def pack_nibbles(codes: Codes) -> Codes:
    """`[…, L]` codes below 16, two a byte, the even one low; L is even."""
    packed: Codes = codes[..., ::2] | (codes[..., 1::2] << np.uint8(4))
    return packed


def unpack_nibbles(octets: Codes) -> Codes:
    """The inverse of `pack_nibbles`."""
    return np.stack([octets & 15, octets >> 4], axis=-1).reshape(*octets.shape[:-1], -1)


def pack_awq(codes: Codes) -> npt.NDArray[np.int32]:
    """`[…, L]` 4-bit codes as AWQ packs them along the last axis; L is a multiple of 8."""
    eights = codes.reshape(*codes.shape[:-1], -1, 8)[..., AWQ_ORDER]
    return pack_stream(eights.reshape(codes.shape), 4)


def unpack_awq(words: npt.NDArray[Any], count: int) -> Codes:
    """The inverse of `pack_awq`."""
    eights = unpack_stream(words, 4, count).reshape(*words.shape[:-1], -1, 8)
    return eights[..., np.argsort(AWQ_ORDER)].reshape(*words.shape[:-1], count)
