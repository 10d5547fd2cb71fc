"""What goes wrong with a GPU is said in one line: what is missing, how much, which flag helps."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import gpu_toy as toy
import pytest
import torch
from fake_cuda import FakeCuda
from fake_driver import build_driver
from kernelgen_runtime import SamplingParams
from kernelgen_runtime.errors import CapacityError, DeviceMemoryError, LaunchError
from runtime_fakes import manifest_json, oracle, target_json
from test_cuda_step import Bench
from test_runtime_fake_gpu import large_pages, library, open_toy


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("gpu")
    return Bench(folder, build_driver(folder / "driver"))


# CUDA_ERROR_INVALID_IMAGE, _NO_BINARY_FOR_GPU, _UNSUPPORTED_PTX_VERSION.
@pytest.mark.parametrize("error", [200, 209, 222])
def test_a_driver_older_than_the_code_is_told_what_is_needed(bench: Bench, error: int) -> None:
    """The toy's code is by ptxas 12.8."""
    step = ["step", 0, toy.args()]
    failing = {"FAKE_FAIL": f"cuModuleLoadData={error}"}
    for version, has in ((12020, "12.2"), (12070, "12.7")):
        done = bench.run(*toy.bind_all(), step, FAKE_VERSION=str(version), **failing)
        assert f"the driver (CUDA {has}) does not load the code made by ptxas 12.8" in done.error()
        assert done.error().endswith("; a driver for CUDA 12.8 or newer is needed")
    for version in (12080, 13000):  # the driver's age is not the reason
        done = bench.run(*toy.bind_all(), step, FAKE_VERSION=str(version), **failing)
        assert "does not load the code" in done.error() and "is needed" not in done.error()


def test_kernels_that_the_driver_does_not_load_end_the_start() -> None:
    def refuse(plan_id: int) -> None:
        raise LaunchError("loading plan 0: gemv: the driver (CUDA 12.2) does not load the code")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fake_cuda.FakeGpuLibrary.load", lambda self, plan_id: refuse(plan_id))
        with pytest.raises(LaunchError, match="does not load the code"):
            open_toy(FakeCuda())


def one_line(caught: pytest.ExceptionInfo[DeviceMemoryError], *words: str) -> None:
    text = str(caught.value)
    assert "\n" not in text and all(word in text for word in words), text


def test_weights_that_do_not_fit_say_how_much_is_missing_and_where_else() -> None:
    with pytest.raises(DeviceMemoryError) as caught:
        open_toy(FakeCuda(total=5000))
    one_line(caught, "the weights of toy", "888 bytes are missing", "--device cuda:N")


def out_of_memory(number: int) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("total", "words"),
    [(1 << 20, "kB are missing"), (1 << 30, "it is fragmented")],
)
def test_a_capture_without_memory_says_what_a_graph_takes(total: int, words: str) -> None:
    with pytest.raises(DeviceMemoryError) as caught:
        open_toy(FakeCuda(total=total, spoil=out_of_memory), max_num_seqs=8)
    flags = ("--kv-cache-memory-bytes", "--gpu-memory-utilization", "--max-num-seqs", "--eager")
    one_line(caught, "the graph of 8 requests takes 1.05 MB", words, *flags)


def test_a_capture_beside_the_cache_says_what_was_measured() -> None:
    """Two graphs are measured at 5 and 3 MiB; a later one finds no room."""

    def spoil(number: int) -> None:
        if number == 3:
            out_of_memory(number)

    gpu = FakeCuda(total=100 << 20, graph_bytes=(5 << 20, 3 << 20, 0), spoil=spoil)
    with pytest.raises(DeviceMemoryError) as caught:
        open_toy(gpu, large_pages(), max_num_seqs=8, max_model_len=256)
    one_line(caught, "the graph of 4 requests takes 3.15 MB", "--gpu-memory-utilization")


def test_kernels_without_memory_are_named_as_the_reason() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fake_cuda.FakeGpuLibrary.load", lambda self, plan_id: out_of_memory(0))
        with pytest.raises(DeviceMemoryError) as caught:
            open_toy(FakeCuda())
    one_line(caught, "out of memory while loading the kernels", "are free", "--kv-cache-memory")


def test_every_buffer_without_memory_says_what_is_missing_and_what_helps() -> None:
    """Memory that ends a byte before each of a start's allocations."""
    options: dict[str, Any] = {"max_num_seqs": 8, "kv_cache_memory_bytes": 1 << 16}
    sizes: list[int] = []

    class Counting(FakeCuda):
        def zeros(self, size: int) -> torch.Tensor:
            sizes.append(size)
            return super().zeros(size)

    open_toy(Counting(), max_model_len=64, **options)
    failed = []
    for used in accumulate(sizes):
        with pytest.raises(DeviceMemoryError) as caught:
            open_toy(FakeCuda(total=used - 1), max_model_len=64, **options)
        one_line(caught, " takes ", "1 bytes are missing; ", "--")
        failed.append(str(caught.value).split(" takes ")[0].split(": ")[1])
    assert failed == [
        *("the weights of toy", "the arguments of a step", "workspace and 8 rows of logits"),
        *("the null page", "the cache of 512 pages"),
    ]


def test_a_cache_for_no_request_at_all_names_flags() -> None:
    with pytest.raises(DeviceMemoryError) as caught:
        open_toy(FakeCuda(total=3 << 20), large_pages(), max_model_len=256)
    flags = ("--gpu-memory-utilization", "--max-num-batched-tokens", "--max-num-seqs")
    one_line(caught, "are missing: no request fits", *flags)


@pytest.mark.parametrize("count", [0, 9, 1 << 40])
def test_a_batch_beyond_what_was_built(count: int) -> None:
    with pytest.raises(CapacityError, match="max_num_seqs must be from 1 to 8"):
        open_toy(FakeCuda(), max_num_seqs=count)


def test_nothing_to_do_is_no_step() -> None:
    llm = open_toy(FakeCuda())
    launched = len(library(llm).steps)
    assert llm.generate([]) == [] and llm.score([]) == []
    assert llm.engine.step() == [] and llm.engine.scheduler.schedule() is None
    assert len(library(llm).steps) == launched


def test_more_requests_than_the_ladder_holds_wait_their_turn() -> None:
    values: dict[str, Any] = manifest_json()
    target_json(values)["plans"] = [
        p for p in target_json(values)["plans"] if p["phase"] == "mixed" or p["size"] <= 4
    ]
    llm = open_toy(FakeCuda(), values, max_num_seqs=4)
    params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    outputs = llm.generate([[i + 1] for i in range(11)], params)
    assert [list(o.token_ids) for o in outputs] == [oracle([i + 1], 4) for i in range(11)]
    assert llm.program.eager_decodes == 0
