"""Owns what `doctor` finds out about this machine without compiling or importing anything heavy."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

from kernelgen import __version__
from kernelgen.compile.isa import ISAS, machine_isas
from kernelgen.compile.jobs import default_jobs
from kernelgen.compile.store import default_root
from kernelgen.compile.toolchain import find_toolchain
from kernelgen.core.errors import KernelgenError
from kernelgen.hw import device_of_driver_name
from kernelgen.report.figures import bytes_text

_CPUINFO = Path("/proc/cpuinfo")
_REQUIRED = ("torch", "apache-tvm-ffi", "numpy", "safetensors", "tokenizers", "jinja2")
# What each extra of pyproject.toml brings, by the module that shows it is there.
EXTRAS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "gpu": {"triton": "triton"},
        "serve": {
            "httptools": "httptools",
            "llguidance": "llguidance",
            "msgspec": "msgspec",
            "prometheus-client": "prometheus_client",
            "pyyaml": "yaml",
            "starlette": "starlette",
            "uvicorn": "uvicorn",
            "uvloop": "uvloop",
        },
        "structured": {"llguidance": "llguidance"},
        "demo": {"gguf": "gguf"},
        "ray": {"ray": "ray"},
        "report": {"matplotlib": "matplotlib"},
    }
)


@dataclass(frozen=True)
class Finding:
    """One fact. `ok` is None for what is only information, False for what stops the CPU target."""

    topic: str
    name: str
    value: str | int | float | tuple[str, ...] | None
    text: str
    ok: bool | None = None
    hint: str = ""


def machine_findings() -> Iterator[Finding]:
    """Versions, compiler, processor, disk, GPUs and extras, in the order in which they matter."""
    yield from _versions()
    yield _compiler()
    yield from _processor()
    yield from _disk()
    yield from _gpus()
    yield from _extras()


def best_isa() -> str | None:
    """The best instruction set of this machine that libraries are built for; None without AVX2."""
    try:
        found = machine_isas(_CPUINFO.read_text())
    except OSError:
        return None
    return found[-1] if found else None


def _versions() -> Iterator[Finding]:
    yield Finding("versions", "kernelgen", __version__, __version__)
    python = platform.python_version()
    yield Finding("versions", "python", python, f"{python}, {platform.platform()}")
    for name in _REQUIRED:
        version = _version(name)
        hint = "" if version else f"pip install {name}"
        yield Finding("versions", name, version, version or "missing", version is not None, hint)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _compiler() -> Finding:
    try:
        tools = find_toolchain()
    except KernelgenError as error:
        return Finding("compiler", "c++", None, error.message, False, error.hint)
    text = f"{tools.version} ({tools.compiler}), tvm-ffi headers {tools.tvm_ffi}"
    return Finding("compiler", "c++", tools.version, text, True)


def _processor() -> Iterator[Finding]:
    try:
        info = _CPUINFO.read_text()
    except OSError:
        info = ""
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    name = model[1].strip() if model else platform.processor() or "unknown"
    yield Finding("processor", "model", name, name)
    yield Finding(
        "processor", "threads", default_jobs(), f"{default_jobs()} usable by this process"
    )
    found = machine_isas(info)
    flags = f"{' < '.join(ISAS)}; this machine has {', '.join(found) or 'none'}"
    best = found[-1] if found else None
    hint = "" if best else "a processor with AVX2 and FMA is needed to run CPU builds"
    yield Finding("processor", "instruction set", best, f"{best} ({flags})", bool(best), hint)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Finding("processor", "memory", memory, bytes_text(memory))


def _disk() -> Iterator[Finding]:
    root = default_root()
    existing = next(p for p in (root, *root.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    writable = os.access(existing, os.W_OK)
    hint = "" if writable else "set KERNELGEN_CACHE to a folder that you may write"
    yield Finding("disk", "cache", str(root), str(root), writable, hint)
    yield Finding("disk", "free", free, f"{bytes_text(free)} beside the cache", free > 10**9)


def _gpus() -> Iterator[Finding]:
    names, text = _driver_devices()
    if not names:
        yield Finding("gpu", "devices", (), f"{text}: GPU targets can be planned, not run")
    for i, (name, capability) in enumerate(names):
        device = device_of_driver_name(name)
        fits = device.target if device else f"sm_{capability} without a device description"
        yield Finding("gpu", f"device {i}", name, f"{name}: {fits}")


def _driver_devices() -> tuple[list[tuple[str, int]], str]:
    """(name, compute capability × 10) of each GPU by the CUDA driver, or why there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return [], "no CUDA driver"
    if (code := cuda.cuInit(0)) != 0:
        return [], f"the CUDA driver finds no device (error {code})"
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    found = []
    for number in range(count.value):
        handle, name = ctypes.c_int(), ctypes.create_string_buffer(128)
        cuda.cuDeviceGet(ctypes.byref(handle), number)
        cuda.cuDeviceGetName(name, len(name), handle)
        parts = []
        for attribute in (75, 76):  # major, minor of the compute capability
            value = ctypes.c_int()
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
            parts.append(value.value)
        found.append((name.value.decode("ascii", "replace"), 10 * parts[0] + parts[1]))
    return found, "" if found else "the CUDA driver lists no device"


def _extras() -> Iterator[Finding]:
    for extra, brings in EXTRAS.items():
        missing = [name for name, module in brings.items() if not _importable(module)]
        text = f"missing {', '.join(missing)}" if missing else "present"
        hint = f"pip install 'kernelgen[{extra}]'" if missing else ""
        yield Finding("extras", extra, tuple(missing), text, None, hint)


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
