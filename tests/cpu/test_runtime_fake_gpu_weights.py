"""Weights on their way to a GPU that is a fake: read ahead by threads, equal to the CPU's."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda
from kernelgen_runtime.artifact.manifest import Part, Weight, laid_out_shape
from kernelgen_runtime.device.cuda import CudaDevice
from kernelgen_runtime.errors import DeviceMemoryError, WeightsError
from kernelgen_runtime.weights import load
from kernelgen_runtime.weights.checkpoint import Checkpoint, open_checkpoint
from kernelgen_runtime.weights.layout import Read, blocks, fill
from kernelgen_runtime.weights.load import load_weights
from kernelgen_runtime.weights.staging import SLOTS, StagedTensors
from runtime_fakes import VOCAB, manifest_json, manifest_of
from safetensors.torch import save_file


def checkpoint(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    tensors = {"embed.weight": torch.randn(VOCAB, 6), "norm.weight": torch.ones(6)}
    save_file({k: v.to(dtype) for k, v in tensors.items()}, str(folder / "model.safetensors"))
    return folder


@pytest.mark.row("B-12")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_bytes", [4 * 32 * 6, 32 << 20])
def test_a_gpu_gets_what_the_cpu_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, block_bytes: int
) -> None:
    monkeypatch.setattr(load, "GPU_BLOCK_BYTES", block_bytes)
    manifest, folder = manifest_of(manifest_json()), checkpoint(tmp_path, dtype)
    gpu = FakeCuda(eager=True)
    threads = threading.active_count()
    for source in (folder, "random:5"):
        wanted = load_weights(manifest, source).tensors
        found = load_weights(manifest, source, CudaDevice(gpu)).tensors
        assert wanted.keys() == found.keys()
        for name, tensor in wanted.items():
            assert torch.equal(tensor, found[name]) and found[name].data_ptr() % 256 == 0, name
    assert threading.active_count() == threads, "no reader stays behind"


@pytest.mark.parametrize("kind", ["rows", "panel"])
@pytest.mark.parametrize("interleave", [0, 8])
def test_every_layout_announces_what_it_reads(tmp_path: Path, kind: str, interleave: int) -> None:
    tensors = {"a": torch.randn(70, 5), "b": torch.randn(70, 5)}
    save_file(tensors, str(tmp_path / "model.safetensors"))
    source = open_checkpoint(tmp_path)
    parts = (Part("a", 70, 5), Part("b", 70, 5))
    weight = Weight("w", "bfloat16", (), kind, parts, interleave, None)
    outs = [torch.zeros(laid_out_shape(weight), dtype=torch.bfloat16) for _ in range(2)]
    size = 4 * 32 * 5
    fill(weight, source, outs[0], size)
    reads = [read for block in blocks(weight, size) for read in block.reads]
    with StagedTensors(source, reads, CudaDevice(FakeCuda(eager=True))) as staged:
        fill(weight, staged, outs[1], size)
    assert torch.equal(*outs) and len(reads) >= 6


def many_rows(folder: Path, rows: int) -> tuple[Checkpoint, torch.Tensor, Sequence[Read]]:
    matrix = torch.arange(rows * 4, dtype=torch.float32).view(rows, 4)
    save_file({"m": matrix}, str(folder / "model.safetensors"))
    return open_checkpoint(folder), matrix, [Read("m", i, 1, 4) for i in range(rows)]


@pytest.mark.parametrize("batch", [0, 256 + 16, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_pinned_memory_is_filled_again_only_when_its_copy_is_done(
    tmp_path: Path, seed: int, batch: int
) -> None:
    source, matrix, reads = many_rows(tmp_path, 5 * SLOTS + 1)
    gpu = FakeCuda(seed)
    with StagedTensors(source, reads, CudaDevice(gpu), batch) as staged:
        for i in range(len(reads)):
            row = staged.rows("m", i, 1, 4)
            time.sleep(0.001)
            gpu.synchronize()
            assert torch.equal(row[0], matrix[i])


def test_host_memory_is_a_few_blocks(tmp_path: Path) -> None:
    source, _, reads = many_rows(tmp_path, 300)
    gpu = FakeCuda(eager=True)
    with StagedTensors(source, reads, CudaDevice(gpu)) as staged:
        for i in range(300):
            staged.rows("m", i, 1, 4)
    assert gpu.pinned_bytes == SLOTS * 256 and gpu.used == SLOTS * 256


def test_an_error_of_a_reader_comes_up_and_ends_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path)
    real = Checkpoint.read_into

    def shrunk(self: Checkpoint, view: memoryview, name: str, *rest: Any) -> None:
        if name == "norm.weight":
            raise WeightsError("'norm.weight': its file was shortened while it was read")
        real(self, view, name, *rest)

    monkeypatch.setattr(Checkpoint, "read_into", shrunk)
    threads = threading.active_count()
    with pytest.raises(WeightsError, match="shortened"):
        load_weights(manifest_of(manifest_json()), folder, CudaDevice(FakeCuda(eager=True)))
    assert threading.active_count() == threads


def test_no_room_for_staging_is_said(tmp_path: Path) -> None:
    gpu = FakeCuda(eager=True, total=7000)
    with pytest.raises(DeviceMemoryError, match=r"staging for the weights.*--device cuda:N"):
        load_weights(manifest_of(manifest_json()), checkpoint(tmp_path), CudaDevice(gpu))


def test_no_pinned_memory_names_the_host(tmp_path: Path) -> None:
    class NonePinned(FakeCuda):
        def pinned(self, size: int) -> torch.Tensor:
            raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(DeviceMemoryError, match=r"no pinned host memory.*ulimit -l") as caught:
        load_weights(manifest_of(manifest_json()), checkpoint(tmp_path), CudaDevice(NonePinned()))
    assert "\n" not in str(caught.value)


def test_no_room_to_lay_a_weight_out_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(weight: Weight, *rest: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0")

    monkeypatch.setattr(load, "fill", full)
    threads = threading.active_count()
    with pytest.raises(DeviceMemoryError) as caught:
        load_weights(manifest_of(manifest_json()), checkpoint(tmp_path), CudaDevice(FakeCuda()))
    text = str(caught.value)
    assert "out of memory while embed is laid out: 20.00 MiB more are needed" in text
    assert "\n" not in text and "are free" in text and "--device cuda:N" in text
    assert threading.active_count() == threads


@pytest.mark.parametrize("gpu", [None, FakeCuda(eager=True)])
def test_every_weight_is_told(tmp_path: Path, gpu: FakeCuda | None) -> None:
    told: list[tuple[int, int]] = []
    device = None if gpu is None else CudaDevice(gpu)
    for source in (checkpoint(tmp_path), "random"):
        manifest = manifest_of(manifest_json())
        weights = load_weights(manifest, source, device, lambda *now: told.append(now))
        assert len(told) == len(manifest.weights) and told == sorted(told)
        assert told[-1] == (weights.bytes, weights.bytes)
        told.clear()


def test_an_interrupt_ends_loading_and_its_threads(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    gpu, threads = FakeCuda(eager=True), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        device = CudaDevice(gpu)
        load_weights(manifest_of(manifest_json()), checkpoint(tmp_path), device, interrupt)
    assert threading.active_count() == threads


@pytest.mark.parametrize("batch", [0, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_a_place_is_filled_again_only_when_the_work_on_it_is_done(
    tmp_path: Path, seed: int, batch: int
) -> None:
    """The caller's work is queued and runs late; each sees the rows it asked for."""
    source, matrix, reads = many_rows(tmp_path, 5 * SLOTS)
    gpu = FakeCuda(seed)
    kept = torch.zeros_like(matrix)
    with StagedTensors(source, reads, CudaDevice(gpu), batch) as staged:
        for i in range(len(reads)):
            gpu.copy(kept[i], staged.rows("m", i, 1, 4)[0])
    assert torch.equal(kept, matrix)
