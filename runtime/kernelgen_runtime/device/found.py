"""Owns asking this machine for its GPUs."""

from dataclasses import dataclass

from ..errors import shown


@dataclass(frozen=True)
class Gpu:
    """One GPU that CUDA shows; `sm` is ten times its compute capability (90 for 9.0)."""

    index: int
    name: str
    sm: int


@dataclass(frozen=True)
class Found:
    """The GPUs of this machine, or in `reason` why there is none."""

    gpus: tuple[Gpu, ...]
    reason: str = ""


def find_gpus() -> Found:
    """Return the GPUs that torch can use. Never raises: what is wrong is said in `reason`."""
    import torch

    if torch.version.cuda is None:
        return Found((), f"torch {torch.__version__} has no CUDA support")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        gpus = tuple(_gpu(index) for index in range(torch.cuda.device_count()))
    except (RuntimeError, AssertionError) as error:
        # "Found no NVIDIA driver …" or "The NVIDIA driver on your system is too old (… 11040) …".
        return Found((), shown(str(error).strip().splitlines()[0] if str(error) else "", 200))
    return Found(gpus, "" if gpus else "CUDA shows no device")


def _gpu(index: int) -> Gpu:
    import torch

    major, minor = torch.cuda.get_device_capability(index)
    return Gpu(index, torch.cuda.get_device_name(index), 10 * major + minor)
