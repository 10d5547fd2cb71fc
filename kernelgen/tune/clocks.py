"""Owns reading a GPU's clocks through the driver's management library, where it is there."""

from __future__ import annotations

import ctypes

_SM, _MEMORY = 1, 2  # nvmlClockType_t


class Clocks:
    """Clocks of one GPU in MHz; zeros where nobody tells them."""

    def __init__(self, bus_id: str) -> None:
        self._device = ctypes.c_void_p()
        self._nvml: ctypes.CDLL | None = None
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        name = ctypes.byref(self._device)
        started = self._nvml.nvmlInit_v2() == 0
        if not started or self._nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), name):
            self._nvml = None

    def now(self) -> tuple[int, int]:
        """Of the multiprocessors and of the memory."""
        return self._read(_SM), self._read(_MEMORY)

    def driver(self) -> str:
        """Version of the driver; empty where it is not told."""
        text = ctypes.create_string_buffer(96)
        if self._nvml is None or self._nvml.nvmlSystemGetDriverVersion(text, 96):
            return ""
        return text.value.decode(errors="replace")

    def _read(self, kind: int) -> int:
        mhz = ctypes.c_uint()
        if self._nvml is None or self._nvml.nvmlDeviceGetClockInfo(
            self._device, kind, ctypes.byref(mhz)
        ):
            return 0
        return mhz.value
