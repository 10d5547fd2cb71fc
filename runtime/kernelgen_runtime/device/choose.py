"""Owns choosing where a model runs: the target of the artifact and the device that fits it."""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..artifact.manifest import Manifest
from ..errors import KernelgenRuntimeError, NoDeviceError, UnsupportedGpuError, shown
from .found import Found, Gpu, find_gpus

AUTO = "auto"
_CUDA = re.compile(r"cuda(?::([0-9]{1,3}))?")
_LOG = logging.getLogger(__name__)
_WARNED: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Choice:
    """The manifest to run by and the GPU to run on; None is the CPU."""

    manifest: Manifest
    gpu: Gpu | None


def choose(
    manifests: Sequence[Manifest],
    wanted: str = AUTO,
    find: Callable[[], Found] | None = None,
) -> Choice:
    """Return what runs: `wanted` is "auto", "cpu", "cuda" or "cuda:1".

    "auto" takes the first GPU that a target fits, else the CPU where the artifact has it. GPUs are
    looked for only where the artifact has a target for one. Raises UnsupportedGpuError where no
    target fits what is here, NoDeviceError where nothing is here, KernelgenRuntimeError for
    another word.
    """
    host = next((m for m in manifests if m.sm == 0), None)
    for_gpus = [m for m in manifests if m.sm]
    match = _CUDA.fullmatch(wanted) if isinstance(wanted, str) else None
    if match is None and not (isinstance(wanted, str) and wanted in (AUTO, "cpu")):
        raise KernelgenRuntimeError(f"--device must be auto, cpu or cuda[:i], is {shown(wanted)}")
    if wanted == "cpu" or (wanted == AUTO and not for_gpus):
        if host is None:
            raise UnsupportedGpuError(f"this artifact has no library for the CPU: {_has(for_gpus)}")
        return Choice(host, None)
    if not for_gpus:
        raise UnsupportedGpuError("this artifact has no library for a GPU: it was built for cpu")
    found = (find or find_gpus)()
    gpus = found.gpus if match is None else _asked(found, match.group(1), wanted, for_gpus)
    for gpu in gpus:
        fitting = best_for(for_gpus, gpu)
        if fitting is not None:
            _warn_of_other_device(fitting, gpu)
            return Choice(fitting, gpu)
    if wanted == AUTO and host is not None:
        if gpus:
            _LOG.warning("%s; running on the CPU", _misfit(for_gpus, gpus))
        return Choice(host, None)
    if not gpus:
        raise NoDeviceError(f"needs {_needs(for_gpus)}, found no NVIDIA GPU ({found.reason})")
    raise UnsupportedGpuError(_misfit(for_gpus, gpus))


def best_for(manifests: Sequence[Manifest], gpu: Gpu) -> Manifest | None:
    """Return the manifest that suits `gpu` best: planned for it by name, else of the highest SM."""
    fitting = [m for m in manifests if runs_on(m.sm, gpu.sm)]
    return max(fitting, key=lambda m: (gpu.name in m.device_names, m.sm), default=None)


def runs_on(code_sm: int, gpu_sm: int) -> bool:
    """Whether machine code for `code_sm` runs on a GPU.

    From 9.0 on it is architecture-specific and runs on exactly that one; older code runs on later
    minor versions of the same major one too.
    """
    if code_sm >= 90:
        return code_sm == gpu_sm
    return code_sm // 10 == gpu_sm // 10 and code_sm <= gpu_sm


def _asked(
    found: Found, index: str | None, wanted: str, for_gpus: Sequence[Manifest]
) -> tuple[Gpu, ...]:
    """Return the GPU that was asked for by number, or all. Raises NoDeviceError."""
    if not found.gpus:
        raise NoDeviceError(f"needs {_needs(for_gpus)}, found no NVIDIA GPU ({found.reason})")
    if index is None:
        return found.gpus
    if int(index) >= len(found.gpus):
        last = len(found.gpus) - 1
        raise NoDeviceError(f"{wanted}: this machine has GPUs 0 to {last}")
    return (found.gpus[int(index)],)


def _warn_of_other_device(manifest: Manifest, gpu: Gpu) -> None:
    key = (manifest.target, gpu.name)
    if gpu.name in manifest.device_names or key in _WARNED:
        return
    _WARNED.add(key)
    _LOG.warning(
        "planned for %s (%s), running on %s: results are right, speed may not be the best",
        manifest.target,
        " or ".join(manifest.device_names) or "a device without a name",
        shown(gpu.name),
    )


def _needs(manifests: Sequence[Manifest]) -> str:
    return " or ".join(dict.fromkeys(f"sm_{m.sm}" for m in manifests))


def _has(manifests: Sequence[Manifest]) -> str:
    return f"it was built for {', '.join(m.target for m in manifests)}"


def _misfit(manifests: Sequence[Manifest], gpus: Sequence[Gpu]) -> str:
    seen = ", ".join(dict.fromkeys(f"sm_{gpu.sm} ({shown(gpu.name)[1:-1]})" for gpu in gpus))
    return f"needs {_needs(manifests)}, found {seen}"
