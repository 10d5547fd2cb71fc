"""The runtime on a real GPU, with a toy library of torch operations: streams, graphs, loading."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.artifact.manifest import Part, Weight, laid_out_shape
from kernelgen_runtime.artifact.open import Artifact
from kernelgen_runtime.device.choose import Choice, choose
from kernelgen_runtime.device.cuda import CudaDevice
from kernelgen_runtime.device.found import find_gpus
from kernelgen_runtime.device.open import open_device
from kernelgen_runtime.device.torch_cuda import TorchCuda
from kernelgen_runtime.errors import DeviceMemoryError
from kernelgen_runtime.weights.checkpoint import open_checkpoint
from kernelgen_runtime.weights.layout import blocks, fill
from kernelgen_runtime.weights.load import GPU_BLOCK_BYTES, load_weights
from kernelgen_runtime.weights.staging import StagedTensors
from runtime_fakes import HYBRID, manifest_json, manifest_of, on_gpu
from safetensors.torch import save_file
from torch_library import TorchLibrary, following

GREEDY = SamplingParams(max_tokens=50, temperature=0.0, ignore_eos=True)


def choice_of(values: dict[str, Any]) -> Choice:
    """The first GPU, whatever it is, and the manifest for it."""
    gpu = find_gpus().gpus[0]
    target = f"sm_{gpu.sm}:any"
    return choose([manifest_of(on_gpu(values, target, gpu.name))], "cuda:0")


def open_toy(**options: Any) -> LLM:
    values = manifest_json()
    choice = choice_of(values)
    artifact = Artifact((choice.manifest,), Path("toy"))
    library = TorchLibrary(on_gpu(values))
    return LLM(artifact, "random:3", device=choice, library=library, **options)


@pytest.mark.row("B-01")
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize(("seqs", "budget", "pages"), [(1, 64, 40), (4, 16, 40), (8, 64, 400)])
def test_tokens_equal_the_rule(graphs: bool, seqs: int, budget: int, pages: int) -> None:
    llm = open_toy(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_model_len=200,
        kv_cache_memory_bytes=128 * pages,
        graphs=graphs,
    )
    chance = random.Random(seqs)
    prompts = [[chance.randrange(96) for _ in range(n)] for n in (1, 5, 30, 70, 3, 18, 100, 2)]
    for _ in range(2):
        outputs = llm.generate(prompts, GREEDY)
        for prompt, output in zip(prompts, outputs, strict=True):
            assert list(output.token_ids) == following(prompt, 50, HYBRID)
    assert llm.program.eager_decodes == 0 and not llm.engine.scheduler.has_work


class LateCuda(TorchCuda):
    """Copies start up to a millisecond late, on either stream: a missing wait shows."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        torch.cuda._sleep(random.randrange(1_500_000))
        super().copy(target, source)


@pytest.mark.row("R-089")
@pytest.mark.parametrize("seed", range(3))
def test_late_copies_change_no_token(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random.seed(seed)
    monkeypatch.setattr("kernelgen_runtime.device.torch_cuda.TorchCuda", LateCuda)
    llm = open_toy(max_num_seqs=4, max_model_len=200, kv_cache_memory_bytes=128 * 60)
    prompts = [[seed + i, 3, 4] for i in range(6)]
    for prompt, output in zip(prompts, llm.generate(prompts, GREEDY), strict=True):
        assert list(output.token_ids) == following(prompt, 50, HYBRID)


@pytest.mark.row("R-083")
def test_the_cache_is_sized_and_fits() -> None:
    llm = open_toy(max_num_seqs=8)
    assert llm.pages > 200 and torch.cuda.mem_get_info()[0] > 0
    assert not llm.program._runner._bound["cache"][0].any()  # type: ignore[attr-defined]


@pytest.mark.row("R-086")
def test_capturing_is_quick() -> None:
    open_toy(max_num_seqs=1)
    start = time.perf_counter()
    open_toy(max_num_seqs=8)
    assert time.perf_counter() - start < 3.0


def test_out_of_memory_is_one_line() -> None:
    device = open_device(choice_of(manifest_json()))
    assert isinstance(device, CudaDevice)
    total = device.api.memory().total
    with pytest.raises(DeviceMemoryError, match="are missing; lower x") as caught:
        device.allocate(2 * total, "a cache", "lower x")
    assert "\n" not in str(caught.value)
    with pytest.raises(DeviceMemoryError, match="--kv-cache-memory-bytes"):
        open_toy(kv_cache_memory_bytes=2 * total)
    with pytest.raises(DeviceMemoryError, match="are left for the cache"):
        open_toy(gpu_memory_utilization=1e-6)


# Weights.


def big_manifest(layers: int, rows: int, cols: int) -> Any:
    """A manifest whose weights are `layers` matrices of bfloat16."""
    values = manifest_json()
    names = [f"layers.{i}.weight" for i in range(layers)]
    values["tensors"] = [{"name": n, "shape": [rows, cols], "dtypes": ["BF16"]} for n in names]
    values["targets"][0]["weights"] = [
        {
            "name": name,
            "dtype": "bfloat16",
            "shape": [rows, cols],
            "layout": "rows",
            "parts": [{"tensor": name, "rows": rows, "cols": cols}],
            "interleave": 0,
            "source": "checkpoint",
        }
        for name in names
    ]
    return values


def test_random_weights_of_8b_take_less_than_two_seconds() -> None:
    choice = choice_of(big_manifest(160, 12288, 4096))  # 16.1 GB
    device = open_device(choice)
    if isinstance(device, CudaDevice) and device.api.memory().free < 20 << 30:
        pytest.skip("needs 20 GiB of GPU memory")
    load_weights(choice_of(manifest_json()).manifest, "random:1", device)  # the context
    weights = load_weights(choice.manifest, "random:1", device)
    print(f"{weights.bytes / weights.seconds / 1e9:.1f} GB/s")
    assert weights.seconds < 2.0
    (first, *_), last = weights.tensors.values(), list(weights.tensors.values())[-1]
    assert not torch.equal(first, last) and 0.01 < float(last.float().std()) < 0.02


def test_random_weights_are_those_of_the_cpu() -> None:
    manifest = choice_of(manifest_json()).manifest
    here = load_weights(manifest, "random:7").tensors
    there = load_weights(manifest, "random:7", open_device(choice_of(manifest_json()))).tensors
    for name, tensor in here.items():
        if name.startswith("rope"):
            torch.testing.assert_close(tensor, there[name].cpu(), atol=1e-7, rtol=0)
        else:
            assert torch.equal(tensor, there[name].cpu()), name


def test_a_checkpoint_streams_at_seven_gb_a_second(tmp_path: Path) -> None:
    values = big_manifest(24, 12288, 8192)  # 4.8 GB, in the page cache once it is written
    matrix = torch.randn(12288, 8192).bfloat16()
    tensors = {t["name"]: matrix + i for i, t in enumerate(values["tensors"])}
    file = tmp_path / "model.safetensors"
    save_file(tensors, str(file))
    try:
        choice = choice_of(values)
        device = open_device(choice)
        load_weights(choice_of(manifest_json()).manifest, "random:1", device)  # the context
        weights = load_weights(choice.manifest, tmp_path, device)
    finally:
        file.unlink()
    rate = weights.bytes / weights.seconds / 1e9
    print(f"{rate:.1f} GB/s")
    for name, tensor in tensors.items():
        assert torch.equal(weights.tensors[name].cpu(), tensor), name
    assert rate > 7.0


@pytest.mark.row("B-12")
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["rows", "panel"])
@pytest.mark.parametrize("interleave", [0, 8])
def test_layouts_equal_those_of_the_cpu(
    tmp_path: Path, stored: torch.dtype, dtype: str, kind: str, interleave: int
) -> None:
    tensors = {name: torch.randn(70, 37).to(stored) for name in "ab"}
    save_file(tensors, str(tmp_path / "model.safetensors"))
    source = open_checkpoint(tmp_path)
    parts = (Part("a", 70, 37), Part("b", 70, 37))
    weight = Weight("w", dtype, (), kind, parts, interleave, None)
    shape, real = laid_out_shape(weight), getattr(torch, dtype)
    here, there = torch.zeros(shape, dtype=real), torch.zeros(shape, dtype=real, device="cuda")
    fill(weight, source, here)
    reads = [read for block in blocks(weight, GPU_BLOCK_BYTES) for read in block.reads]
    device = open_device(choice_of(manifest_json()))
    assert isinstance(device, CudaDevice)
    torch.cuda.synchronize()
    with device.working(), StagedTensors(source, reads, device) as staged:
        fill(weight, staged, there, GPU_BLOCK_BYTES)
    assert torch.equal(here, there.cpu())


def test_read_bandwidth_is_plausible() -> None:
    device = open_device(choice_of(manifest_json()))
    rate = device.read_bandwidth(0.2)
    print(f"{rate:.0f} GB/s")
    assert rate is not None and rate > 100
