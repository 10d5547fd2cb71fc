"""Owns what stands beside every figure: device, driver, clocks, date and versions."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_VERSIONS = ("torch", "apache-tvm-ffi")
_SM, _MEMORY = 1, 2  # NVML's numbers of clocks
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Clocks:
    """MHz at one moment, and the most there is; None where the driver does not tell."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    most_sm_mhz: int | None = None

    @property
    def text(self) -> str:
        """ "SM 1980 of 1980 MHz, memory 3201 MHz"."""
        if self.sm_mhz is None:
            return "unknown"
        most = f" of {self.most_sm_mhz}" if self.most_sm_mhz else ""
        return f"SM {self.sm_mhz}{most} MHz, memory {self.memory_mhz or '?'} MHz"


@dataclass(frozen=True)
class Machine:
    """`spec_gb_s`: memory bandwidth of the data sheet, None for a device without one of ours."""

    device: str
    driver: str | None
    spec_gb_s: float | None
    cores: int
    load_before: float
    system: str
    date: str
    versions: Mapping[str, str]


def machine(device: str, driver: str | None, spec_gb_s: float | None) -> Machine:
    """What holds during a whole run; `device` empty means this processor."""
    return Machine(
        device=device or processor_name(),
        driver=driver,
        spec_gb_s=spec_gb_s,
        cores=len(os.sched_getaffinity(0)),
        load_before=round(os.getloadavg()[0], 2),
        system=platform.platform(),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        versions={"python": platform.python_version(), **_versions()},
    )


def processor_name() -> str:
    """As the system spells it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", _CPUINFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or "unknown processor"


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


class Nvml:
    """The driver's own library, asked for one GPU by its UUID; says nothing where it is missing."""

    def __init__(self, uuid: str) -> None:
        self._library, self._handle = _open(uuid)

    @property
    def driver(self) -> str | None:
        """Version of the driver."""
        text = ctypes.create_string_buffer(96)
        if self._library is None or self._library.nvmlSystemGetDriverVersion(text, len(text)):
            return None
        return text.value.decode("ascii", "replace")

    def clocks(self) -> Clocks:
        """The clocks at this moment."""
        return Clocks(
            sm_mhz=self._clock("nvmlDeviceGetClockInfo", _SM),
            memory_mhz=self._clock("nvmlDeviceGetClockInfo", _MEMORY),
            most_sm_mhz=self._clock("nvmlDeviceGetMaxClockInfo", _SM),
        )

    def _clock(self, function: str, which: int) -> int | None:
        if self._library is None or self._handle is None:
            return None
        value = ctypes.c_uint()
        failed = getattr(self._library, function)(self._handle, which, ctypes.byref(value))
        return None if failed else value.value


def _open(uuid: str) -> tuple[Any, ctypes.c_void_p | None]:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, None
    if library.nvmlInit_v2():
        return None, None
    handle = ctypes.c_void_p()
    name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    if library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)):
        return library, None
    return library, handle
