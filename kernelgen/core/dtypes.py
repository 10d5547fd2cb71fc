"""Owns the table of element types and how torch, numpy, C++ and safetensors spell each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernelgen.core.errors import UnsupportedError, quote


@dataclass(frozen=True)
class DType:
    """One element type.

    `name` is also its tvm-ffi and manifest spelling. Names of other libraries are strings, so that
    none of them is imported; `numpy` and `cpp` of a type they lack are its stored bits (`uint16`).
    """

    name: str
    bits: int
    is_float: bool
    torch: str
    numpy: str
    cpp: str
    safetensors: str

    @property
    def bytes(self) -> int:
        """Size of one element in bytes."""
        return self.bits // 8

    def size_bytes(self, elements: int) -> int:
        """Bytes of so many elements."""
        return elements * self.bits // 8

    def __str__(self) -> str:
        return self.name


FLOAT32 = DType("float32", 32, True, "float32", "float32", "float", "F32")
BFLOAT16 = DType("bfloat16", 16, True, "bfloat16", "uint16", "uint16_t", "BF16")
FLOAT16 = DType("float16", 16, True, "float16", "float16", "uint16_t", "F16")
INT32 = DType("int32", 32, False, "int32", "int32", "int32_t", "I32")
INT64 = DType("int64", 64, False, "int64", "int64", "int64_t", "I64")
UINT8 = DType("uint8", 8, False, "uint8", "uint8", "uint8_t", "U8")
FLOAT8 = DType("float8_e4m3", 8, True, "float8_e4m3fn", "uint8", "uint8_t", "F8_E4M3")
BOOL = DType("bool", 8, False, "bool", "bool", "uint8_t", "BOOL")

DTYPES: Mapping[str, DType] = MappingProxyType(
    {d.name: d for d in (FLOAT32, BFLOAT16, FLOAT16, INT32, INT64, UINT8, FLOAT8, BOOL)}
)

_BY_SAFETENSORS = {d.safetensors: d for d in DTYPES.values()}


def dtype(name: str, *, where: str = "") -> DType:
    """The type called `name`; an unknown one is an `UnsupportedError` listing what exists."""
    found = DTYPES.get(name)
    if found is None:
        raise UnsupportedError(
            f"dtype {quote(name)} is not known", where=where, allowed=", ".join(DTYPES)
        )
    return found


def dtype_of_safetensors(tag: str, *, where: str = "") -> DType:
    """The type that safetensors calls `tag` ("BF16"); unknown tags as in `dtype`."""
    found = _BY_SAFETENSORS.get(tag)
    if found is None:
        raise UnsupportedError(
            f"safetensors dtype {quote(tag)} is not known",
            where=where,
            allowed=", ".join(_BY_SAFETENSORS),
        )
    return found
