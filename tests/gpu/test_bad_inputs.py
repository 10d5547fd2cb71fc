"""What a GPU cannot do, on a real one: too little memory at any stage; the far end of the cache.

KERNELGEN_GPU_BUILD names the build (a small model: random weights are made for it).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.artifact.open import open_artifact
from kernelgen_runtime.device.choose import choose
from kernelgen_runtime.device.found import find_gpus
from kernelgen_runtime.errors import CapacityError, DeviceMemoryError, UnsupportedGpuError

GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)


@contextmanager
def left(size: int) -> Iterator[None]:
    """Take the GPU's memory but for `size` bytes."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    taken = None
    while taken is None:  # the driver hands out less than it calls free
        with suppress(torch.OutOfMemoryError):
            taken = torch.empty(max(0, free - size), dtype=torch.uint8, device="cuda")
        free -= 2 << 20
    try:
        yield
    finally:
        del taken
        torch.cuda.empty_cache()


def opened(build: Path, **options: Any) -> LLM:
    options |= {"max_model_len": 512, "enable_prefix_caching": False}
    return LLM(build, "random:1", device="cuda", **options)


def test_a_gpu_of_another_sm_is_one_line(gpu_build: Path) -> None:
    found = find_gpus()
    manifest = choose(open_artifact(gpu_build).manifests, "cuda").manifest
    other = replace(manifest, target="sm_75:other")
    with pytest.raises(UnsupportedGpuError, match="needs sm_75, found sm_") as caught:
        choose([other], "cuda", lambda: found)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("megabytes", [0, 2, 8, 32])
def test_too_little_memory_is_told_at_every_stage(gpu_build: Path, megabytes: int) -> None:
    """Weights, buffers, kernels, graphs or cache: whichever does not fit, and then all does."""
    opened(gpu_build, max_num_seqs=4)  # the context, and what the driver keeps for kernels
    with left(megabytes << 20), pytest.raises(DeviceMemoryError) as caught:
        opened(gpu_build, max_num_seqs=4, kv_cache_memory_bytes=64 << 20)
    text = str(caught.value)
    assert "\n" not in text and "free" in text
    assert "missing" in text or "fragmented" in text or "out of memory while" in text
    opened(gpu_build, max_num_seqs=4, kv_cache_memory_bytes=64 << 20)


def test_more_requests_than_the_build_holds(gpu_build: Path) -> None:
    with pytest.raises(CapacityError, match="max_num_seqs must be from 1 to"):
        opened(gpu_build, max_num_seqs=1 << 20)


def test_pages_beyond_2_31_elements(gpu_build: Path) -> None:
    """The last pages of a cache of more than 2³¹ elements give the answers of the first."""
    page = choose(open_artifact(gpu_build).manifests, "cuda").manifest.cache.page_bytes
    size = (9 << 30) // page * page
    if torch.cuda.mem_get_info()[0] < size + (2 << 30):
        pytest.skip("needs 11 GB of GPU memory")
    llm = opened(gpu_build, max_num_seqs=2, kv_cache_memory_bytes=size)
    prompts = [[(7 * i + 3) % llm.manifest.vocab for i in range(n)] for n in (70, 33)]
    near = [output.token_ids for output in llm.generate(prompts, GREEDY)]
    pool = llm.engine.scheduler.cache.pool
    kept = pool.take(pool.free_pages - 64 * len(llm.manifest.cache.groups))
    assert kept is not None and min(set(range(1, pool.pages)) - set(kept)) * page > 1 << 32
    far = [output.token_ids for output in llm.generate(prompts, GREEDY)]
    pool.give_back(kept)
    assert far == near
