"""Owns waking a GPU while Python still imports torch: driver and context take a third of a second.

Nothing hangs on it: what goes wrong here goes wrong again, and is told, where the GPU is used.
"""

import ctypes
import re
import threading
from pathlib import Path

from .choose import runs_on

MANIFEST = "manifest.json"
_TARGET = re.compile(rb'"target": ?"sm_([1-9][0-9]{1,3}):')
_WANTED = re.compile(r"auto|cuda(?::([0-9]{1,3}))?")
_MAJOR, _MINOR = 75, 76  # attributes of a device: its compute capability


def wake_gpu(artifact: str | Path, wanted: str) -> threading.Thread | None:
    """Begin to wake the GPU that `artifact` (a folder) will run on, in a thread that is returned.

    `wanted` is `--device`. None: a wheel (it has to be unpacked first), or no GPU is meant.
    """
    match = _WANTED.fullmatch(wanted)
    if match is None:
        return None
    try:
        text = (Path(artifact) / MANIFEST).read_bytes()
    except OSError:
        return None
    targets = {int(sm) for sm in _TARGET.findall(text)}
    if not targets:
        return None
    index = int(match[1]) if match[1] else None
    thread = threading.Thread(target=_wake, args=(targets, index), name="wake-gpu", daemon=True)
    thread.start()
    return thread


def _wake(targets: set[int], index: int | None) -> None:
    """Retain the context that torch will use, of the first GPU that fits or the one asked for."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return
    for number in range(count.value) if index is None else [index]:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuDeviceGet(ctypes.byref(device), number):
            return
        sm = 10 * _attribute(driver, _MAJOR, device) + _attribute(driver, _MINOR, device)
        if any(runs_on(target, sm) for target in targets):
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            return


def _attribute(driver: ctypes.CDLL, which: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), which, device)
    return value.value
