"""Guarded memory: aligned, poisoned, and telling of every byte written around it."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys

import pytest
import torch

from kernelgen.verify.child import child_environment
from kernelgen.verify.guarded import Guarded, poison

SHAPES = [(1,), (3, 7), (16, 64), (5, 1000)]  # less than a line, odd, whole lines, several pages


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_buffers_are_aligned_and_poisoned(shape: tuple[int, ...], dtype: str) -> None:
    guarded = Guarded(shape, dtype)
    tensor = guarded.tensor
    assert tensor.shape == shape and tensor.is_contiguous()
    assert tensor.data_ptr() % 64 == 0
    assert bool((tensor.view(torch.uint8) == 255).all())
    if tensor.is_floating_point():
        assert bool(tensor.isnan().all())
    tensor.fill_(1)
    assert guarded.damage() == 0


@pytest.mark.parametrize("offset", [-1, -64, "end"])
def test_a_byte_around_a_buffer_is_noticed(offset: int | str) -> None:
    guarded = Guarded((3, 7), "float32")
    size = guarded.tensor.numel() * 4
    at = guarded.tensor.data_ptr() + (size if offset == "end" else int(offset))
    ctypes.memset(at, 0, 1)
    assert guarded.damage() == 1


@pytest.mark.parametrize("direction", ["read", "write"])
def test_further_out_ends_the_process(direction: str) -> None:
    access = "ctypes.string_at(at, 1)" if direction == "read" else "ctypes.memset(at, 0, 1)"
    code = (
        "import ctypes; from kernelgen.verify.guarded import Guarded\n"
        "g = Guarded((64,), 'float32'); at = g.tensor.data_ptr() + 256\n"
        f"{access}"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, timeout=120
    )
    assert ended.returncode == -signal.SIGSEGV


def test_copies_and_poison() -> None:
    original = torch.arange(6, dtype=torch.int32).view(2, 3)
    copy = Guarded.of(original)
    assert torch.equal(copy.tensor, original) and copy.damage() == 0
    row = torch.zeros(4, dtype=torch.bfloat16)
    poison(row)
    assert bool(row.isnan().all())
