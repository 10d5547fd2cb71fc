"""Owns whether a command's GPU is in this machine, said before any work is done for it."""

from __future__ import annotations

from typing import Any

from kernelgen.core.errors import NoDeviceError, UnsupportedError
from kernelgen.hw import parse_target


def gpus_here() -> tuple[Any, ...]:
    """GPUs as the driver counts them; none without a driver."""
    from kernelgen_runtime.device.found import find_gpus

    return find_gpus().gpus


def refuse_missing_gpu(target: str, hint: str) -> None:
    """`NoDeviceError` where `target` needs a GPU and there is none, `UnsupportedError` where none
    of them runs its code; nothing for the CPU.
    """
    device = parse_target(target)
    if device.is_cpu:
        return
    from kernelgen_runtime.device.choose import runs_on

    gpus = gpus_here()
    if not gpus:
        raise NoDeviceError(f"needs {device.sm_name}, found no NVIDIA GPU", hint=hint)
    if not any(runs_on(device.sm, gpu.sm) for gpu in gpus):
        found = ", ".join(dict.fromkeys(f"sm_{gpu.sm} ({gpu.name})" for gpu in gpus))
        raise UnsupportedError(f"needs {device.sm_name}, found {found}")
