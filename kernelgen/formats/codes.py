"""Owns element codes: how many bits one has and which number each of its code points is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class ElementCode:
    """One kind of element; `values[c]` is the number that code c stands for.

    Integers are stored with an offset, q + 2^(bits-1), unless a zero point takes its place.
    """

    name: str
    bits: int
    values: tuple[float, ...]

    @property
    def is_integer(self) -> bool:
        """Whether a code is a whole number with an offset."""
        return self.name.startswith("int")

    @property
    def offset(self) -> int:
        """The code of zero for integers; what a zero point replaces."""
        return 1 << (self.bits - 1)

    @property
    def stored_bits(self) -> int:
        """Bits of an element on the device: whole nibbles, so that kernels know two widths."""
        return 4 if self.bits <= 4 else 8

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return max(v for v in self.values if not math.isnan(v))


def _float_code(name: str, exponent: int, mantissa: int, bias: int, nan: int | None) -> ElementCode:
    """Sign, exponent, mantissa; exponent 0 is subnormal and only magnitude `nan` is no number."""

    def magnitude(code: int) -> float:
        if code == nan:
            return math.nan
        e, m = code >> mantissa, code & ((1 << mantissa) - 1)
        if e == 0:
            return math.ldexp(m, 1 - bias - mantissa)
        return math.ldexp(m + (1 << mantissa), e - bias - mantissa)

    positive = [magnitude(code) for code in range(1 << (exponent + mantissa))]
    return ElementCode(name, 1 + exponent + mantissa, (*positive, *(-v for v in positive)))


def _integer(bits: int) -> ElementCode:
    half = 1 << (bits - 1)
    return ElementCode(f"int{bits}", bits, tuple(float(q - half) for q in range(1 << bits)))


E2M1 = _float_code("e2m1", 2, 1, bias=1, nan=None)
E4M3 = _float_code("e4m3", 4, 3, bias=7, nan=0x7F)
INTEGERS: Mapping[int, ElementCode] = MappingProxyType({b: _integer(b) for b in range(2, 9)})
CODES: Mapping[str, ElementCode] = MappingProxyType(
    {code.name: code for code in (E2M1, E4M3, *INTEGERS.values())}
)
