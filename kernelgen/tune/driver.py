"""Owns launching machine code through the NVIDIA driver alone: no compiler, no CUDA toolkit."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelgen.core.errors import NoDeviceError
from kernelgen.tune.bundle import Launch, Matrix

_COOPERATIVE, _CLUSTER, _DEPENDENT = 2, 4, 6  # CUlaunchAttributeID
_SHARED_BYTES, _CARVEOUT = 8, 9  # CUfunction_attribute
_PLAIN_SHARED = 48 << 10
_HIDDEN = 2
"""pointers to scratch and profile that Triton's kernels take behind their own parameters"""


_WORD = (1 << 64) - 1
_MAP_ALIGNMENT = 64
_NO_INTERLEAVE, _PROMOTE_TO_128_BYTES, _ZEROS_OUTSIDE = 0, 2, 0
_FLOAT32 = 7


class DriverFault(Exception):
    """The driver refused a call; after some refusals nothing more runs in the process."""


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


@dataclass(frozen=True)
class Parameters:
    """Values of one launch as the driver takes them: addresses of 64-bit words."""

    words: Any
    addresses: Any


class _Descriptor(ctypes.Structure):
    """As Triton's kernels take it: the map itself, then sides and strides, each a parameter."""

    _fields_ = (
        ("map", ctypes.c_uint64 * 16),
        ("sides", ctypes.c_int32 * 2),
        ("strides", ctypes.c_int64 * 2),
    )


@dataclass(frozen=True)
class Described:
    """A matrix in memory as the unit that copies blocks sees it."""

    memory: Any
    addresses: tuple[int, ...]


def parameters(values: Sequence[int | Described]) -> Parameters:
    """Pack integers, addresses and descriptors; narrow integers are read from the low bytes of
    their word.
    """
    plain = [v & _WORD for v in values if isinstance(v, int)] + [0] * _HIDDEN
    words = (ctypes.c_uint64 * len(plain))(*plain)
    place = iter(range(ctypes.addressof(words), ctypes.addressof(words) + 8 * len(plain), 8))
    found: list[int] = []
    for value in values:
        found += [next(place)] if isinstance(value, int) else value.addresses
    found += place
    return Parameters((words, values), (ctypes.c_void_p * len(found))(*found))


class Prepared:
    """A launch that only lacks its parameters and the stream."""

    def __init__(self, cuda: Driver, function: Any, launch: Launch) -> None:
        self._cuda, self._function = cuda, function
        self._config = _Config()
        self._config.grid[:] = launch.grid
        self._config.block[:] = (launch.threads, 1, 1)
        self._config.shared = launch.shared_bytes
        # The one that may be left out comes last.
        wanted = (
            (_COOPERATIVE, launch.cooperative, (1,)),
            (_CLUSTER, launch.cluster > 1, (launch.cluster, 1, 1)),
            (_DEPENDENT, launch.pdl, (1,)),
        )
        ids = [(number, value) for number, on, value in wanted if on]
        self._attributes = (_Attribute * len(wanted))()
        for place, (number, value) in enumerate(ids):
            self._attributes[place].id = number
            self._attributes[place].value[: len(value)] = value
        self._config.attributes = ctypes.addressof(self._attributes)
        self._all, self._alone = len(ids), len(ids) - launch.pdl
        self.empty = 0 in launch.grid

    def run(self, given: Parameters, stream: int, *, overlap: bool) -> None:
        """Launches; `overlap`: it may begin before its predecessor has ended."""
        if self.empty:
            return
        self._config.stream = stream
        self._config.count = self._all if overlap else self._alone
        self._cuda.call(
            "cuLaunchKernelEx", ctypes.byref(self._config), self._function, given.addresses, None
        )


class Driver:
    """libcuda, in the context that torch has made current."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoDeviceError("no NVIDIA driver (libcuda.so.1) on this machine") from error

    def call(self, name: str, *arguments: Any) -> None:
        """One function of the driver; `DriverFault` with its words where it refuses."""
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            raise DriverFault(f"{name}: {(text.value or b'unknown').decode()} ({code})")

    def load(
        self, code: bytes, symbol: str, shared_bytes: int, carve_out: int | None = None
    ) -> tuple[Any, Any]:
        """A module and the kernel in it, allowed to use its shared memory. `carve_out`: the percent
        of all there is that it asks for, negative for none; without it all where it needs much.
        """
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), code)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, symbol.encode())
        if shared_bytes > _PLAIN_SHARED:
            self.call("cuFuncSetAttribute", function, _SHARED_BYTES, shared_bytes)
        wanted = (100 if shared_bytes > _PLAIN_SHARED else -1) if carve_out is None else carve_out
        if wanted >= 0:
            self.call("cuFuncSetAttribute", function, _CARVEOUT, wanted)
        return module, function

    def unload(self, module: Any) -> None:
        """Frees the code; nothing may still run it."""
        self.call("cuModuleUnload", module)

    def describe(self, start: int, matrix: Matrix) -> Described:
        """A descriptor of rows that lie one after another from `start` on."""
        size = ctypes.sizeof(_Descriptor)
        memory = ctypes.create_string_buffer(size + _MAP_ALIGNMENT)
        at = -(-ctypes.addressof(memory) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        made = _Descriptor.from_address(at)
        made.sides[:] = (matrix.rows, matrix.columns)
        made.strides[:] = (matrix.columns, 1)
        width = 4 if matrix.element == _FLOAT32 else 2
        self.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(at),
            matrix.element,
            2,
            ctypes.c_void_p(start),
            (ctypes.c_uint64 * 2)(matrix.columns, matrix.rows),
            (ctypes.c_uint64 * 1)(matrix.columns * width),
            (ctypes.c_uint32 * 2)(matrix.block_columns, matrix.block_rows),
            (ctypes.c_uint32 * 2)(1, 1),
            _NO_INTERLEAVE,
            matrix.swizzle,
            _PROMOTE_TO_128_BYTES,
            _ZEROS_OUTSIDE,
        )
        sides, strides = at + _Descriptor.sides.offset, at + _Descriptor.strides.offset
        return Described(memory, (at, sides, sides + 4, strides, strides + 8))

    def version(self) -> str:
        """The newest CUDA that the driver knows: "13.0"."""
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"
