"""Owns loading: every weight of the manifest, from a checkpoint or made up, in one allocation."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ..artifact.manifest import Manifest
from ..buffers import Arena, byte_size, rounded
from ..device.cuda import CudaDevice, is_out_of_memory, out_of_memory_text
from ..device.host import HostDevice
from ..errors import DeviceMemoryError
from .blocks import BLOCK_BYTES
from .check import check_tensors
from .checkpoint import Checkpoint, TensorSource, open_checkpoint
from .identity import check_config
from .layout import fill, reads
from .random import RandomTensors, made_up, parse_random
from .staging import ADVICE, StagedTensors

# Larger for a GPU: launches and hand-overs between threads are paid by the block.
GPU_BLOCK_BYTES = 2 * BLOCK_BYTES

Told = Callable[[int, int], None]
"""takes the bytes of the buffers that are filled and those of all"""


def no_one(done: int, total: int) -> None:
    """Nobody is told how far loading is."""


@dataclass(frozen=True)
class Weights:
    """Buffers ready to be bound, in manifest order; they live as long as this object."""

    tensors: dict[str, torch.Tensor]
    bytes: int
    seconds: float


def load_weights(
    manifest: Manifest,
    source: str | Path,
    device: HostDevice | CudaDevice | None = None,
    told: Told = no_one,
) -> Weights:
    """Load from folder `source`, or make weights up where it is `random[:SEED]`.

    Peak host memory is a few blocks of 8 MiB beside the bound buffers (which lie on `device`, the
    CPU by default), or SLOTS blocks of up to 16 MiB for a GPU; a packed matrix that is stored
    transposed is one block. `told` hears of every weight. An interrupt leaves no thread behind.
    Raises WeightsError, and DeviceMemoryError where the buffers do not fit.
    """
    start = time.perf_counter()
    device = device or HostDevice()
    seed = parse_random(source) if isinstance(source, str) else None
    checkpoint = None if seed is not None else open_checkpoint(source)
    if checkpoint is not None:
        check_tensors(checkpoint.entries, manifest.model, str(source))
        check_config(Path(source), manifest.model)
    align = device.alignment
    total = sum(rounded(byte_size(w.shape, w.dtype), align) for w in manifest.weights)
    block_bytes = GPU_BLOCK_BYTES if isinstance(device, CudaDevice) else BLOCK_BYTES
    buffers = {}
    with ExitStack() as stack:
        stack.enter_context(device.working() if isinstance(device, CudaDevice) else _one_thread())
        advice = ADVICE if isinstance(device, CudaDevice) else ""
        arena = Arena(device.allocate(total, f"the weights of {manifest.name}", advice), align)
        tensors: TensorSource
        if checkpoint is None:
            tensors = RandomTensors(manifest.model, seed or 0, device.place, manifest.weights)
        elif isinstance(device, CudaDevice):
            tensors = stack.enter_context(_staged(checkpoint, manifest, device, block_bytes))
        else:
            tensors = checkpoint
        for weight in manifest.weights if checkpoint is not None else made_up(manifest.weights):
            buffers[weight.name] = arena.take(weight.shape, weight.dtype)
            with _room_to_work(device, weight.name):
                fill(weight, tensors, buffers[weight.name], block_bytes)
            told(arena.used, total)
    return Weights(buffers, total, time.perf_counter() - start)


def _staged(
    checkpoint: Checkpoint, manifest: Manifest, device: CudaDevice, block_bytes: int
) -> StagedTensors:
    wanted = (
        read
        for weight in manifest.weights
        for read in reads(weight, checkpoint.entries, block_bytes)
    )
    return StagedTensors(checkpoint, wanted, device, block_bytes // 2)


@contextmanager
def _room_to_work(device: HostDevice | CudaDevice, name: str) -> Iterator[None]:
    """Say whose blocks found no room where laying them out needs some."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(device, CudaDevice) or not is_out_of_memory(error):
            raise
        said = out_of_memory_text(device, error, f"{name} is laid out")
        raise DeviceMemoryError(f"{said}; {ADVICE}") from None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Copy with one thread: two took 1.4 times as long, and spin on into the first step."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
