"""Owns one GPU as a place for trials: buffers between poisoned zones, faults told in one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from kernelgen.core.errors import NoDeviceError, UnsupportedError
from kernelgen.verify.bounded import TENSOR_CORES
from kernelgen.verify.guarded import POISON
from kernelgen.verify.place import Host, Place, Promises
from kernelgen.verify.tensors import Tensor

BARE = "PYTORCH_NO_CUDA_MEMORY_CACHING"
"""set where a memory checker watches: every buffer is then an allocation of its own, without zones,
so that the checker sees each access beyond its ends"""
_ZONE = 4096


class DeviceFault(Exception):
    """A launch went wrong on the GPU; nothing more runs on it in this process."""


class Zoned:
    """A buffer on a GPU, a zone of poison on either side."""

    def __init__(self, shape: Sequence[int], dtype: str, device: str) -> None:
        import torch

        kind = getattr(torch, dtype)
        size = prod(shape) * kind.itemsize
        zone = 0 if os.environ.get(BARE) else _ZONE
        total = size + 2 * zone
        self._whole = torch.full((total,), POISON, dtype=torch.uint8, device=device)
        self._zones = (self._whole[:zone], self._whole[zone + size :])
        self.tensor: Tensor = self._whole[zone : zone + size].view(kind).view(*shape)

    @property
    def content(self) -> Tensor:
        """What it holds, on the CPU."""
        return self.tensor.cpu()

    def damage(self) -> int:
        """Bytes around the buffer that have been written."""
        return sum(int((zone != POISON).sum()) for zone in self._zones)


GPU = Promises(
    arithmetic=TENSOR_CORES,
    repeats="again",
    runs=(0, 0),
    alone_is_equal=False,
    by_plan=True,
    cache_by_token=True,
    refusals=(ValueError, TypeError),
)


@dataclass(frozen=True)
class Gpu:
    """The first GPU; buffers lie between zones of poison."""

    device: str = "cuda:0"
    promises: Promises = GPU

    def empty(self, shape: Sequence[int], dtype: str) -> Zoned:
        """Memory full of poison."""
        return Zoned(shape, dtype, self.device)

    def copy(self, tensor: Tensor) -> Zoned:
        """The same with contents."""
        made = self.empty(tensor.shape, str(tensor.dtype).removeprefix("torch."))
        made.tensor.copy_(tensor)
        return made

    def wait(self) -> None:
        """Until all launches are done; `DeviceFault` with the driver's words."""
        import torch

        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError as error:
            raise DeviceFault(str(error).strip().splitlines()[0]) from None

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """A graph of what the work launches."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream(self.device)):  # type: ignore[no-untyped-call]
            graph.capture_begin(capture_error_mode="thread_local")
            work()
            graph.capture_end()
        return graph.replay


def place_of(isa: str) -> Place:
    """Where a library runs: one for `sm_90` on the first GPU, others on the CPU."""
    return Gpu() if isa.startswith("sm_") else Host()


def check_gpu(sm: str) -> None:
    """Say what is missing where the first GPU does not run code for `sm`."""
    import torch

    needs = f"verify runs kernels for {sm}"
    if torch.version.cuda is None or not torch.cuda.is_available():
        raise NoDeviceError(f"{needs}, and torch {torch.__version__} finds no GPU here")
    major, minor = torch.cuda.get_device_capability(0)
    wanted, found = int(sm.removeprefix("sm_")), 10 * major + minor
    same = wanted == found if wanted >= 90 else wanted // 10 == major and wanted <= found
    if not same:
        name = torch.cuda.get_device_name(0)
        raise UnsupportedError(f"needs {sm}, found sm_{found} ({name})", where="cuda:0")
