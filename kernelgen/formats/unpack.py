"""Owns reading a producer's tensors as the parts of a quantised matrix, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelgen.core.errors import UsageError
from kernelgen.formats.format import WHOLE, WeightFormat
from kernelgen.formats.packing import Packing
from kernelgen.formats.reference import Quantised
from kernelgen.formats.scales import scale_values
from kernelgen.formats.streams import unpack_awq, unpack_nibbles, unpack_stream


def unpack(
    kind: WeightFormat, packing: Packing, tensors: Mapping[str, Any], n: int, k: int
) -> Quantised:
    """The parts of `[N, K]`; `tensors` holds arrays by part (`codes`, `scale`, …) as they are
    stored, 8-bit floats as uint8 and bfloat16 as uint16. `UsageError` for parts that cannot be
    meant: scales that are no positive number, columns in another order than K.
    """
    order = tensors.get("order")
    if order is not None:
        check_order(kind, order, k)
    scale = _scales(kind, packing, tensors["scale"], n, k)
    zero = _zeros(kind, packing, tensors["zero"], n, k) if kind.zero else None
    factor = None
    if kind.row_factor:
        one = np.asarray(tensors["factor"], np.float32).reshape(-1)
        factor = np.broadcast_to(np.float32(1) / one if packing.factor_divides else one, (n,))
        _check_positive("factor", factor)
    return Quantised(_codes(kind, packing, tensors["codes"], n, k), scale, zero, factor)


def check_order(kind: WeightFormat, order: Any, k: int) -> None:
    """`UsageError` unless column c belongs to group c / group size (or to one group at all)."""
    group = k if kind.group == WHOLE else kind.group
    wanted = np.arange(k) // group
    if order.shape != (k,) or not np.array_equal(order, wanted):
        raise UsageError(
            "g_idx is not k / group_size: columns were reordered by their activations",
            allowed="a checkpoint quantised with desc_act = false",
        )


def _codes(kind: WeightFormat, packing: Packing, stored: Any, n: int, k: int) -> Any:
    bits = kind.code.bits
    if packing.arrangement == "signed":
        codes = stored.view(np.uint8).reshape(n, k) ^ np.uint8(0x80)
    elif packing.arrangement == "bytes":
        codes = stored.view(np.uint8).reshape(n, k)
    elif packing.arrangement == "nibbles":
        codes = unpack_nibbles(stored.view(np.uint8).reshape(n, k // 2))
    elif packing.arrangement == "awq":
        codes = unpack_awq(stored, n).T
    elif packing.transposed:
        codes = unpack_stream(np.ascontiguousarray(stored.T), bits, k)
    else:
        codes = unpack_stream(stored, bits, k)
    return np.ascontiguousarray(codes)


def _scales(kind: WeightFormat, packing: Packing, stored: Any, n: int, k: int) -> Any:
    stored = np.asarray(stored)
    values = scale_values(stored, kind.scale)
    rows, columns = kind.scale_shape(n, k)
    scale = values.reshape(columns, rows).T if packing.transposed else values.reshape(rows, columns)
    _check_positive("scale", scale)
    return np.ascontiguousarray(scale, np.float32)


def _check_positive(what: str, values: Any) -> None:
    wrong = ~(np.isfinite(values) & (values > 0))
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise UsageError(
            f"{what} at {first} is {values[first]}", allowed="finite numbers above zero"
        )


def _zeros(kind: WeightFormat, packing: Packing, stored: Any, n: int, k: int) -> Any:
    groups, bits = kind.groups(k), kind.code.bits
    if packing.arrangement == "awq":
        zeros = unpack_awq(stored, n)
    elif packing.transposed:
        zeros = unpack_stream(stored, bits, n)
    else:
        zeros = unpack_stream(np.ascontiguousarray(stored.T), bits, n)
    assert zeros.shape == (groups, n)
    return np.ascontiguousarray((zeros + np.uint8(packing.zero_bias)).T)
