"""Batch-invariant GPU plans under Triton's interpreter: a needle's bits in every company."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fake_cuda import H200, FakeCuda
from gpu_trials import architectures
from interpreted import InterpretedLibrary, Model, planned
from kernelgen_runtime import LLM
from kernelgen_runtime.artifact.open import Artifact
from kernelgen_runtime.device.choose import Choice
from kernelgen_runtime.device.cuda import CudaDevice
from kernelgen_runtime.launch.cuda_runner import CudaRunner
from runtime_fakes import manifest_of

import kernelgen.archs
from kernelgen.cli.model import ModelSource
from kernelgen.spec.config import ConfigFile
from tests.needle import hidden, needle_of

DECODE, MIXED = (1, 4), (16, 64)


def tiny(name: str, **more: Any) -> dict[str, Any]:
    """Two layers of an architecture; with a window, one layer has it."""
    path = Path(kernelgen.archs.__file__).parent / name / "tiny.json"
    config = json.loads(path.read_text())
    before = config["num_hidden_layers"]
    cut = {k: v[-2:] for k, v in config.items() if isinstance(v, list) and len(v) == before}
    return {**config, **cut, "num_hidden_layers": 2, **more}


def opened(model: Model, chunk: int | None, caching: bool) -> LLM:
    gpu, made = FakeCuda(eager=True), manifest_of(model.manifest)
    with (
        mock.patch("kernelgen_runtime.llm.open_device", lambda _: CudaDevice(gpu)),
        mock.patch.object(CudaRunner, "warm_up", lambda self: None),
    ):
        return LLM(
            Artifact((made,), Path("tiny")),
            "random:5",
            device=Choice(made, H200),
            max_num_seqs=4,
            max_num_batched_tokens=MIXED[-1],
            max_model_len=64,
            chunk_tokens=chunk,
            enable_prefix_caching=caching,
            kv_cache_memory_bytes=made.cache.page_bytes * 80,
            graphs=False,
            library=InterpretedLibrary(model.program, gpu),
            threads=1,
        )


def varied(config: dict[str, Any], dtype: str, invariant: bool) -> list[dict[str, Any]]:
    """What is told of the needle alone, decoded beside others, in chunks and found in the cache."""
    source = ModelSource("tiny", "tiny", ConfigFile("tiny.json", config))
    model = planned(source, "sm_90", dtype, DECODE, MIXED, 64, invariant=invariant)
    found = []
    for chunk, caching, company in ((None, True, (0, 0)), (7, False, (3,)), (1, False, (1,))):
        llm = opened(model, chunk, caching)
        needle = needle_of(llm.manifest.vocab, 38, 3).without_prompt()
        found += hidden(llm, needle, company, 30, seed=2)
    return found


def first(has_window: bool) -> str:
    """An architecture of dense layers, with a window or without."""
    for name in architectures():
        config = tiny(name)
        if ("sliding_window" in config) is has_window and not any("experts" in k for k in config):
            return name
    raise LookupError("no such architecture")


@pytest.mark.soak
@pytest.mark.parametrize("has_window", [False, True], ids=["full", "window"])
def test_a_needle_has_the_same_bits_in_every_company(has_window: bool) -> None:
    config = tiny(first(has_window), **({"sliding_window": 21} if has_window else {}))
    found = varied(config, "float32" if has_window else "bfloat16", invariant=True)
    assert all(one == found[0] for one in found) and len(found) == 4


@pytest.mark.soak
def test_an_ordinary_plan_has_others() -> None:
    """Else the test above would show nothing: its kernels of one and of many rows differ."""
    found = varied(tiny(first(False)), "float32", invariant=False)
    assert any(one != found[0] for one in found)
