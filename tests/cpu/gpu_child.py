"""A process that loads a GPU library and runs commands on it, without torch: see fake_driver.py."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

sys.modules["torch"] = None  # type: ignore[assignment]  # tvm_ffi would import it: 2 s a process
import tvm_ffi  # noqa: E402

_DTYPES = {
    "float32": (2, 32),
    "bfloat16": (4, 16),
    "int32": (0, 32),
    "uint8": (1, 8),
    "int64": (0, 64),
}
_CUDA = 2


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class FakeTensor:
    """Host memory that says it lies on a GPU. Nothing reads it: `address` may point anywhere."""

    def __init__(
        self,
        address: int,
        shape: list[int],
        dtype: str,
        *,
        device: int = 0,
        device_type: int = _CUDA,
        strides: list[int] | None = None,
    ) -> None:
        code, bits = _DTYPES[dtype]
        self.device = (device_type, device)
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        self._managed = _Managed(
            _DLTensor(
                address, device_type, device, len(shape), code, bits, 1,
                self._shape, self._strides, 0,
            ),
            None,
            None,
        )  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._managed), b"dltensor", None)


_kept: list[Any] = []


def _argument(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    tensor = FakeTensor(**value)
    _kept.append(tensor)
    return tvm_ffi.from_dlpack(tensor)


def _run(module: Any, command: list[Any]) -> Any:
    name, *arguments = command
    if name == "other context":
        return ctypes.CDLL("libcuda.so.1").fake_use_other_context()
    if name == "stream":
        _kept.append(tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), arguments[0]))
        return _kept[-1].__enter__() and None
    return module[name](*map(_argument, arguments))


def main() -> None:
    """Commands as JSON on stdin, what each returned or raised as JSON on stdout."""
    library, commands = json.load(sys.stdin)
    module = tvm_ffi.load_module(library)
    found: list[dict[str, Any]] = []
    for command in commands:
        try:
            found.append({"value": _run(module, command)})
        except Exception as error:
            text = str(error).splitlines()[0] if str(error) else ""
            found.append({"error": type(error).__name__, "text": text})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
