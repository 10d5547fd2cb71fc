"""Owns loading: every weight of the manifest, from a checkpoint or made up, in one allocation."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ..artifact.manifest import Manifest
from ..buffers import Arena, byte_size
from ..errors import WeightsError
from .check import check_tensors
from .checkpoint import TensorSource, open_checkpoint
from .layout import fill
from .random import RandomTensors, parse_random


@dataclass(frozen=True)
class Weights:
    """Buffers ready to be bound, in manifest order; they live as long as this object."""

    tensors: dict[str, torch.Tensor]
    bytes: int
    seconds: float


def load_weights(manifest: Manifest, source: str | Path) -> Weights:
    """Load from folder `source`, or make weights up where it is `random[:SEED]`.

    Peak memory is the bound buffers plus a few blocks of 8 MiB. Raises WeightsError.
    """
    start = time.perf_counter()
    tensors = _open(manifest, source)
    total = sum(Arena.rounded(byte_size(w.shape, w.dtype)) for w in manifest.weights)
    try:
        arena = Arena(total)
    except MemoryError:
        raise WeightsError(f"{manifest.name}: no memory for {total} bytes of weights") from None
    buffers = {}
    with _one_thread():
        for weight in manifest.weights:
            buffers[weight.name] = arena.take(weight.shape, weight.dtype)
            fill(weight, tensors, buffers[weight.name])
    return Weights(buffers, total, time.perf_counter() - start)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Copy with one thread: two took 1.4 times as long, and spin on into the first step."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _open(manifest: Manifest, source: str | Path) -> TensorSource:
    seed = parse_random(source) if isinstance(source, str) else None
    if seed is not None:
        return RandomTensors(manifest, seed)
    checkpoint = open_checkpoint(source)
    check_tensors(checkpoint.entries, manifest, str(source))
    return checkpoint
