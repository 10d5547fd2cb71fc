"""Running on a GPU that is a fake: choice, order of streams, graphs, memory, and every refusal."""

from __future__ import annotations

import gc
import logging
import random
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda, FakeGpuLibrary, fake_gpu
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.artifact.manifest import Plan
from kernelgen_runtime.artifact.open import Artifact
from kernelgen_runtime.commands.figures import compared, figure_lines, figures
from kernelgen_runtime.device.choose import choose, runs_on
from kernelgen_runtime.device.found import Found, Gpu
from kernelgen_runtime.errors import (
    CapacityError,
    DeviceMemoryError,
    KernelgenRuntimeError,
    LaunchError,
    NoDeviceError,
    RequestError,
    UnsupportedGpuError,
)
from kernelgen_runtime.launch.args import ArgsWriter, SlotSampling
from kernelgen_runtime.launch.collector import collector_frozen, importing
from kernelgen_runtime.launch.cuda_runner import CudaRunner
from kernelgen_runtime.launch.plans import plans_in_use
from kernelgen_runtime.launch.upload import DeviceArgs, merged
from kernelgen_runtime.scoring import Case
from runtime_fakes import (
    HYBRID,
    VOCAB,
    manifest_json,
    manifest_of,
    on_gpu,
    oracle,
    seen,
    target_json,
    toy_logits,
)

EOS = frozenset((VOCAB - 1,))


def open_toy(gpu: FakeCuda, values: dict[str, Any] | None = None, **options: Any) -> LLM:
    values = on_gpu(values or manifest_json())
    manifest = manifest_of(values)
    choice, device, library = fake_gpu(values, manifest, gpu)
    artifact = Artifact((manifest,), Path("toy"))
    with mock.patch("kernelgen_runtime.llm.open_device", lambda _: device):
        return LLM(artifact, "random:3", device=choice, library=library, threads=1, **options)


def library(llm: LLM) -> FakeGpuLibrary:
    assert isinstance(llm.library, FakeGpuLibrary)
    return llm.library


def manifests(*targets: str) -> list[Any]:
    found = []
    for target in targets:
        values = manifest_json()
        found.append(manifest_of(values if target == "cpu" else on_gpu(values, target)))
    return found


def here(*sms: int, reason: str = "") -> Any:
    names = {80: "NVIDIA A100", 86: "NVIDIA A10", 89: "NVIDIA L4", 90: "NVIDIA H200"}
    gpus = tuple(Gpu(i, names.get(sm, f"sm {sm}"), sm) for i, sm in enumerate(sms))
    return lambda: Found(gpus, reason)


# Which device.


@pytest.mark.parametrize(
    ("targets", "gpus", "wanted", "chosen"),
    [
        (["cpu", "sm_90:h200"], [90], "auto", ("sm_90:h200", 0)),
        (["cpu", "sm_90:h200"], [86, 90], "auto", ("sm_90:h200", 1)),
        (["cpu", "sm_90:h200"], [86], "auto", ("cpu", None)),
        (["cpu", "sm_90:h200"], [], "auto", ("cpu", None)),
        (["cpu", "sm_90:h200"], [90], "cpu", ("cpu", None)),
        (["cpu", "sm_80:a100"], [90, 86], "cuda:1", ("sm_80:a100", 1)),
        (["sm_80:a100", "sm_89:l4"], [89], "cuda", ("sm_89:l4", 0)),
        (["sm_80:a100", "sm_89:l4"], [86], "cuda:0", ("sm_80:a100", 0)),
        (["cpu"], [90], "auto", ("cpu", None)),
    ],
)
def test_the_device_that_fits(
    targets: list[str], gpus: list[int], wanted: str, chosen: tuple[str, int | None]
) -> None:
    choice = choose(manifests(*targets), wanted, here(*gpus))
    assert (choice.manifest.target, choice.gpu and choice.gpu.index) == chosen


@pytest.mark.parametrize(
    ("targets", "gpus", "wanted", "error", "text"),
    [
        (
            ["sm_90:h200"],
            [86],
            "auto",
            UnsupportedGpuError,
            "needs sm_90, found sm_86 (NVIDIA A10)",
        ),
        (
            ["sm_90:h200", "sm_100:b200"],
            [86, 80],
            "cuda",
            UnsupportedGpuError,
            "needs sm_90 or sm_100, found sm_86 (NVIDIA A10), sm_80 (NVIDIA A100)",
        ),
        (["sm_100:b200"], [90], "cuda:0", UnsupportedGpuError, "needs sm_100, found sm_90"),
        (["sm_90:h200"], [], "auto", NoDeviceError, "needs sm_90, found no NVIDIA GPU (why not)"),
        (["cpu", "sm_90:h200"], [], "cuda", NoDeviceError, "found no NVIDIA GPU (why not)"),
        (["cpu", "sm_90:h200"], [90], "cuda:1", NoDeviceError, "cuda:1: this machine has GPUs 0"),
        (["sm_90:h200"], [90], "cpu", UnsupportedGpuError, "no library for the CPU: it was built"),
        (["cpu"], [90], "cuda", UnsupportedGpuError, "it was built for cpu"),
    ],
)
def test_one_line_where_nothing_fits(
    targets: list[str], gpus: list[int], wanted: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        choose(manifests(*targets), wanted, here(*gpus, reason="why not"))
    assert text in str(caught.value) and "\n" not in str(caught.value)
    assert getattr(caught.value, "exit_code", None) == (4 if error is NoDeviceError else 3)


@pytest.mark.parametrize("wanted", ["gpu", "cuda:", "cuda:x", "cuda:1000", "CPU", ""])
def test_another_word_is_a_mistake_of_usage(wanted: str) -> None:
    with pytest.raises(KernelgenRuntimeError, match="--device must be auto, cpu or") as caught:
        choose(manifests("cpu", "sm_90:h200"), wanted, here(90))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("code", [80, 86, 89, 90, 100, 103, 120])
def test_machine_code_and_compute_capability(code: int) -> None:
    fits = {80: {80, 86, 87, 89}, 86: {86, 87, 89}, 89: {89}}.get(code, {code})
    assert {sm for sm in (75, 80, 86, 87, 89, 90, 100, 103, 120, 121) if runs_on(code, sm)} == fits


def test_another_device_of_the_same_sm_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    found = lambda: Found((Gpu(0, "NVIDIA H100 PCIe", 90),))  # noqa: E731
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            choose(manifests("sm_90:h200"), "auto", found)
        choose(manifests("sm_90:h200"), "auto", here(90))
    (record,) = caplog.records
    assert "planned for sm_90:h200 (NVIDIA H200), running on 'NVIDIA H100" in record.getMessage()


def test_gpus_are_not_looked_for_without_need() -> None:
    assert choose(manifests("cpu"), "auto", lambda: 1 // 0).gpu is None  # type: ignore[arg-type]


# Steps.


def some_params(count: int) -> list[SamplingParams]:
    return [
        SamplingParams(max_tokens=9 + 5 * i, temperature=0.7 * (i % 2), top_k=i, top_p=0.9, seed=i)
        for i in range(count)
    ]


def expected(prompt: list[int], param: SamplingParams) -> list[int]:
    return oracle(
        prompt,
        len(prompt) + (param.max_tokens or 0),
        HYBRID,
        EOS,
        temperature=float(np.float32(param.temperature)),
        top_k=param.top_k,
        top_p=float(np.float32(param.top_p)),
        seed=param.seed,
    )


@pytest.mark.row("B-01")
@pytest.mark.row("R-089")
@pytest.mark.parametrize("seed", range(12))
def test_streams_that_run_late_change_no_token(seed: int) -> None:
    chance = random.Random(seed)
    prompts = [
        [chance.randrange(VOCAB - 1) for _ in range(chance.choice((1, 3, 17, 40, 90)))]
        for _ in range(7)
    ]
    llm = open_toy(
        FakeCuda(seed),
        max_num_seqs=chance.choice((1, 3, 8)),
        max_num_batched_tokens=chance.choice((7, 16, 64)),
        max_model_len=200,
        kv_cache_memory_bytes=128 * chance.choice((30, 60, 400)),
        graphs=seed % 4 > 0,
    )
    params = some_params(len(prompts))
    for _ in range(2):
        outputs = llm.generate(prompts, params)
        for prompt, param, output in zip(prompts, params, outputs, strict=True):
            assert list(output.token_ids) == expected(prompt, param)
    assert not llm.engine.scheduler.has_work


@pytest.mark.row("R-089")
def test_two_steps_are_in_flight_and_the_ring_has_one_more() -> None:
    gpu = FakeCuda()
    llm = open_toy(gpu, max_num_seqs=2)
    stream = llm.stream([1, 2], SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True))
    stream.begin()
    llm.engine.step()
    assert len(llm.engine._flights) == 1, "the second step was launched before the first one's wait"
    assert llm.engine.scheduler._launched == 2 and len(stream.request.tokens) == 3
    assert len(llm.program._runner._entries) == 3  # type: ignore[attr-defined]
    llm.engine.drain()
    assert len(stream.request.tokens) == 4 and not llm.engine._flights


@pytest.mark.row("R-089")
@pytest.mark.parametrize("seed", range(4))
def test_an_answer_outlives_a_later_step_that_runs_in_pieces(seed: int) -> None:
    """A step in flight while the next one, asked for more rows of logits than there are, goes round
    the ring: its ids are still its own.
    """
    gpu = FakeCuda(seed)
    llm = open_toy(gpu, max_num_seqs=2, graphs=False)
    llm.stream([1, 2], SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)).begin()
    step = llm.engine.scheduler.schedule()
    assert step is not None
    flight, runner = llm.program.launch(step), llm.program._runner
    assert isinstance(runner, CudaRunner)
    plan, sampled = llm.program._plans.all[-1], runner._bound["sampled"]
    runner._step = lambda plan: gpu.give(lambda: sampled.fill_(-1), gpu.current)  # type: ignore
    for _ in range(2 * len(runner._entries)):
        runner.args().write_nothing(plan)
        assert runner.start(plan, 1)().ids.tolist() == [-1]
    assert llm.program.wait(flight).tolist() == [oracle([1, 2], 3)[0]]


@pytest.mark.row("R-075")
def test_a_request_keeps_its_slot_while_others_come_and_go() -> None:
    """Rows of a step are a list of slots: nothing of a request moves when others end."""
    llm = open_toy(FakeCuda(), max_num_seqs=3)
    first, short, last = (
        llm.stream([n], SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True))
        for n, count in ((1, 12), (2, 2), (3, 12))
    )
    for stream in (first, short, last):
        stream.begin()
    llm.engine.step()
    slots = [stream.request.slot for stream in (first, short, last)]
    assert sorted(slots) == [0, 1, 2]
    while short.request.finish_reason is None:
        llm.engine.step()
    newcomer = llm.stream([4], SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True))
    newcomer.begin()
    while newcomer.request.slot < 0:
        llm.engine.step()
    assert newcomer.request.slot == slots[1]
    assert [first.request.slot, last.request.slot] == [slots[0], slots[2]]
    while first.request.finish_reason is None:
        llm.engine.step()
    assert first.request.output_ids == oracle([1], 13)


@pytest.mark.row("R-091")
@pytest.mark.parametrize("graphs", [True, False])
def test_every_kernel_has_run_before_the_first_request(graphs: bool) -> None:
    """Each plan is loaded and stepped at the start; afterwards nothing is loaded or captured."""
    loaded: list[int] = []
    stepped: list[int] = []
    plain_load, plain_step = FakeGpuLibrary.load, FakeGpuLibrary.step

    def load(library: FakeGpuLibrary, plan: int) -> None:
        loaded.append(plan)
        plain_load(library, plan)

    def step(library: FakeGpuLibrary, plan: int, args: torch.Tensor) -> None:
        stepped.append(plan)
        plain_step(library, plan, args)

    with (
        mock.patch.object(FakeGpuLibrary, "load", load),
        mock.patch.object(FakeGpuLibrary, "step", step),
    ):
        gpu = FakeCuda()
        llm = open_toy(gpu, max_num_seqs=8, graphs=graphs)
        plans = {plan.id for plan in llm.program._plans.all}
        assert set(loaded) == set(stepped) == plans
        before = (len(loaded), gpu.captures)
        llm.generate([[1] * n for n in (1, 2, 30, 50)], SamplingParams(max_tokens=9))
        assert (len(loaded), gpu.captures) == before


def test_decode_steps_replay_graphs_and_prefill_does_not() -> None:
    gpu = FakeCuda()
    llm = open_toy(gpu, max_num_seqs=8)
    assert gpu.captures == 2 + 4, "two for the estimate, then every decode plan"
    launched = len(library(llm).steps)
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    llm.generate([[1], [2], [3]], params)
    steps = library(llm).steps[launched:]
    assert {step[:2] for step in steps} == {("decode", 4)} and llm.program.eager_decodes == 0
    llm.generate([[1] * 20], params)
    assert ("mixed", 64, 20, 1) in library(llm).steps
    eager = open_toy(FakeCuda(), max_num_seqs=8, graphs=False)
    assert eager.device.api.captures == 0  # type: ignore[union-attr]
    outputs = [one.generate([[1], [2, 3]], params) for one in (llm, eager)]
    assert [o.token_ids for o in outputs[0]] == [o.token_ids for o in outputs[1]]
    assert eager.program.eager_decodes == 0, "where graphs are off none is missed"


def test_a_batch_beyond_the_ladder_takes_the_mixed_plan_and_is_counted() -> None:
    values = manifest_json()
    plans = target_json(values)["plans"]
    target_json(values)["plans"] = [p for p in plans if p["phase"] == "mixed" or p["size"] <= 2]
    llm = open_toy(FakeCuda(), values, max_num_seqs=4)
    prompts = [[i + 1] for i in range(4)]
    params = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
    outputs = llm.generate(prompts, params)
    assert [list(o.token_ids) for o in outputs] == [oracle([i + 1], 6) for i in range(4)]
    assert llm.program.eager_decodes >= 4
    assert ("mixed", 16, 4, 4) in library(llm).steps


def test_the_null_page_is_zero_after_captures() -> None:
    """The toy's empty steps leave garbage there and its real ones refuse to run on any."""
    llm = open_toy(FakeCuda(), max_num_seqs=8)
    assert not library(llm).buffers["cache"][0].any()
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3))


@pytest.mark.parametrize("seed", range(3))
def test_scores_between_generations(seed: int) -> None:
    llm = open_toy(FakeCuda(seed), max_num_seqs=3, logit_rows=8, max_model_len=80)
    params = SamplingParams(max_tokens=7, temperature=0.0, ignore_eos=True)
    stream = llm.stream([4, 4], params)
    assert [None for _ in stream] == [] and len(stream.request.output_ids) == 7
    cases = [Case((1, 2, 3), ()), Case(tuple(range(60)), (5,) * 20), Case((9,), (8, 7))]
    for case, score in zip(cases, llm.score(cases), strict=True):
        ids = [*case.prompt_ids, *case.fed_ids]
        wanted = [toy_logits(seen(ids[: i + 1], HYBRID)) for i in range(len(ids))]
        assert np.array_equal(np.concatenate([score.prefill_logits, score.decode_logits]), wanted)
    assert list(llm.generate([[4, 4]], params)[0].token_ids) == stream.request.output_ids


# Failures.


@pytest.mark.parametrize("seed", range(4))
def test_nonsense_from_one_step_ends_its_requests_only(seed: int) -> None:
    llm = open_toy(FakeCuda(seed), max_num_seqs=2)
    real, calls = library(llm)._answer, []

    def answer(read: Any, i: int, row: int, position: int) -> None:
        calls.append(i)
        real(read, i, row, position)
        if len(calls) == 3:
            library(llm).buffers["sampled"][i] = -7

    library(llm)._answer = answer  # type: ignore[method-assign]
    params = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
    with pytest.raises(LaunchError, match="sampled -7"):
        llm.generate([[1]], params)
    assert list(llm.generate([[1]], params)[0].token_ids) == oracle([1], 10)


def test_a_refused_launch_keeps_what_was_launched_before() -> None:
    llm = open_toy(FakeCuda(), max_num_seqs=2, graphs=False)
    real, params = library(llm).step, SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True)
    first = llm.stream([1, 2], params)
    first.begin()
    llm.engine.step()

    def refuse(plan_id: int, args: torch.Tensor) -> None:
        raise LaunchError("refused")

    library(llm).step = refuse  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match="refused"):
        llm.engine.step()
    assert first.request.output_ids == oracle([1, 2], 4), "both steps in flight were taken"
    assert first.request.finish_reason == "error" and not llm.engine.scheduler.has_work
    library(llm).step = real  # type: ignore[method-assign]
    assert list(llm.generate([[7]], params)[0].token_ids) == oracle([7], 10)


def test_an_error_of_the_device_is_one_line_of_ours() -> None:
    llm = open_toy(FakeCuda(), max_num_seqs=1)
    library(llm)._answer = lambda *_: (_ for _ in ()).throw(  # type: ignore[method-assign]
        RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with …")
    )
    with pytest.raises(LaunchError, match="illegal memory access") as caught:
        llm.generate([[1]], SamplingParams(max_tokens=2))
    assert "\n" not in str(caught.value) and "cuda:0" in str(caught.value)


@pytest.mark.parametrize("prompt", [[], [VOCAB], [1] * 256])
def test_unusable_prompts(prompt: list[int]) -> None:
    llm = open_toy(FakeCuda())
    with pytest.raises(RequestError):
        llm.generate([prompt], SamplingParams())


# Memory.


def large_pages() -> dict[str, Any]:
    """The toy with pages of 1 MiB, beside which nothing else counts."""
    values = manifest_json()
    target_json(values)["cache"]["page_bytes"] = 1 << 20
    return values


@pytest.mark.row("R-083")
def test_the_cache_takes_what_everything_else_leaves() -> None:
    gpu = FakeCuda(total=100 << 20)
    llm = open_toy(gpu, max_num_seqs=8, max_model_len=256)
    assert llm.pages == 1 + 8 * (16 + 11), "what all requests need and not more"
    # Of 100 MiB 8 are spared, 1 is the page that graphs were estimated with, 1 holds all else.
    # Taken by the two captures, and estimated for all four: the first, three times the second.
    for costs, taken, estimated in (((3, 2, 0), 5, 3 + 6), ((5, 0), 5, 5 + 3), ((0,), 0, 3)):
        gpu = FakeCuda(total=100 << 20, graph_bytes=tuple(cost << 20 for cost in costs))
        llm = open_toy(gpu, large_pages(), max_num_seqs=8, max_model_len=256)
        assert llm.pages == 100 - 8 - 1 - 1 - taken - estimated, costs
    gpu = FakeCuda(total=100 << 20)
    llm = open_toy(gpu, large_pages(), max_num_seqs=8, graphs=False, gpu_memory_utilization=0.5)
    assert llm.pages == 50 - 1 - 1


@pytest.mark.parametrize(
    ("total", "words"),
    [
        (5000, ["the weights of toy takes 5.89 kB", "5.00 kB of 5.00 kB", "888 bytes are missing"]),
        (19_000, ["workspace and 8 rows of logits takes", "--max-num-batched-tokens"]),
    ],
)
def test_out_of_memory_while_loading(total: int, words: list[str]) -> None:
    with pytest.raises(DeviceMemoryError) as caught:
        open_toy(FakeCuda(total=total))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_out_of_memory_for_the_cache() -> None:
    with pytest.raises(DeviceMemoryError) as caught:
        open_toy(FakeCuda(total=1 << 20), kv_cache_memory_bytes=2 << 20)
    text = str(caught.value)
    assert "the cache of 16384 pages takes 2.10 MB" in text and "are missing" in text
    assert all(
        flag in text for flag in ("--kv-cache-memory-bytes", "--max-num-seqs", "--max-model")
    )


def test_a_context_beyond_the_cache() -> None:
    values = manifest_json()
    target_json(values)["cache"]["page_bytes"] = 1 << 20
    with pytest.raises(
        DeviceMemoryError, match="the longest that fits is --max-model-len"
    ) as caught:
        open_toy(FakeCuda(total=30 << 20), values, max_model_len=256)
    longest = int(str(caught.value).rsplit(" ", 1)[1])
    assert 16 <= longest < 256
    open_toy(FakeCuda(total=30 << 20), values, max_model_len=longest)
    with pytest.raises(CapacityError, match="the longest that fits"):
        open_toy(FakeCuda(), kv_cache_memory_bytes=128 * 10)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), LaunchError("CUDA_ERROR_OUT_OF_MEMORY")]
)
@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_out_of_memory_in_a_capture(error: Exception, at: int) -> None:
    def spoil(number: int) -> None:
        if number == at:
            raise error

    was_enabled = gc.isenabled()
    with pytest.raises(DeviceMemoryError, match=r"graph of \d requests.*--kv-cache-memory-bytes"):
        open_toy(FakeCuda(spoil=spoil), max_num_seqs=8)
    assert gc.isenabled() == was_enabled


class FakeCollector:
    """`gc` that writes down what it is told."""

    def __init__(self, enabled: bool, frozen: int = 0) -> None:
        self.enabled, self.frozen, self.calls = enabled, frozen, []

    def get_freeze_count(self) -> int:
        return self.frozen

    def isenabled(self) -> bool:
        return self.enabled

    def __getattr__(self, name: str) -> Any:
        def call() -> None:
            self.calls.append(name)
            if name in ("enable", "disable"):
                self.enabled = name == "enable"

        return call


@pytest.mark.row("R-086")
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_collector_is_frozen_once_and_comes_back(enabled: bool, fails: bool) -> None:
    collector = FakeCollector(enabled)
    try:
        with collector_frozen(collector):
            assert collector.calls == ["collect", "freeze", "disable"] and not collector.enabled
            if fails:
                raise MemoryError
    except MemoryError:
        pass
    after = ["unfreeze", "collect", *(["enable"] if enabled else [])]
    assert collector.calls == ["collect", "freeze", "disable", *after]
    assert collector.enabled == enabled


@pytest.mark.row("R-086")
@pytest.mark.parametrize("enabled", [True, False])
def test_what_was_imported_stays_out_of_sight(enabled: bool) -> None:
    collector = FakeCollector(enabled)
    with suppress(MemoryError), importing(collector):
        assert not collector.enabled
        raise MemoryError
    rest = ["enable"] * enabled
    assert collector.calls == ["disable", "freeze", *rest] and collector.enabled == enabled
    collector = FakeCollector(enabled, frozen=400_000)
    with collector_frozen(collector):
        assert not collector.enabled
    assert collector.calls == ["collect", "disable", "collect", *rest]


@pytest.mark.row("R-086")
def test_captures_collect_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = FakeCollector(True)
    monkeypatch.setattr(
        "kernelgen_runtime.launch.loading.collector_frozen", lambda: collector_frozen(collector)
    )
    counts: list[int] = []
    open_toy(FakeCuda(spoil=lambda _: counts.append(len(collector.calls))), max_num_seqs=8)
    assert counts == [3] * 6 and len(collector.calls) == 6


def test_the_collector_may_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELGEN_KEEP_GC", "1")
    collector = FakeCollector(True)
    with importing(collector), collector_frozen(collector):
        pass
    assert collector.calls == []


# Arguments.


@pytest.mark.row("R-089")
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_only_differences_go_up_and_all_of_them(data: st.DataObject) -> None:
    schema = manifest_of(manifest_json()).args
    gpu = FakeCuda(eager=True)
    args = DeviceArgs(schema, torch.zeros(schema.words, dtype=torch.int32), gpu)
    writers = [
        ArgsWriter(schema, SlotSampling(8), torch.zeros(schema.words, dtype=torch.int32))
        for _ in range(3)
    ]
    for turn in range(8):
        writer = writers[turn % 3]
        for field in schema.fields:
            table = field.name.startswith("block_table")
            extent = [data.draw(st.integers(0, n)) for n in field.shape[: 1 + table]]
            if data.draw(st.booleans()):
                view = writer.fields[field.name].view(np.int32)
                view[tuple(slice(0, n) for n in extent)] = data.draw(st.integers(-1, 3))
            writer.used[field.name] = tuple(extent)
        args.send(writer)
        held = args.tensor.numpy()
        for field in schema.fields:
            span = held[field.offset : field.offset + int(np.prod(field.shape))]
            used = tuple(slice(0, n) for n in writer.used[field.name])
            new = writer.fields[field.name].view(np.int32)
            assert np.array_equal(span.reshape(field.shape)[used], new[used]), field.name
    sent = gpu.words_sent
    args.send(writer)
    assert gpu.words_sent == sent, "nothing new, nothing sent"


def test_a_copy_that_failed_leaves_nothing_for_known() -> None:
    schema = manifest_of(manifest_json()).args
    gpu = FakeCuda(eager=True)
    args = DeviceArgs(schema, torch.zeros(schema.words, dtype=torch.int32), gpu)
    tensor = torch.zeros(schema.words, dtype=torch.int32)
    writer = ArgsWriter(schema, SlotSampling(8), tensor)
    writer.used = {"counts": (4,)}
    args.send(writer)
    writer.fields["counts"][:] = 7
    copy, gpu.copy = gpu.copy, lambda *_: 1 // 0  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        args.send(writer)
    gpu.copy = copy  # type: ignore[method-assign]
    sent = gpu.words_sent
    args.send(writer)
    assert gpu.words_sent - sent == schema.words and args.tensor[:4].tolist() == [7] * 4


def test_a_decode_step_sends_a_few_words() -> None:
    gpu = FakeCuda()
    llm = open_toy(gpu, max_num_seqs=4)
    stream = llm.stream([1, 2, 3], SamplingParams(max_tokens=60, ignore_eos=True))
    stream.begin()
    for _ in range(5):
        llm.engine.step()
    words = []
    for _ in range(40):
        before = gpu.words_sent
        llm.engine.step()
        words.append(gpu.words_sent - before)
    # The length, the id that comes back, and now and then a page of each group.
    assert min(words) == 2 and sum(words) / len(words) < 40


@given(
    spans=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), max_size=9),
    gap=st.integers(0, 9),
)
def test_merged_spans_cover_the_same_and_lie_apart(spans: list[tuple[int, int]], gap: int) -> None:
    ordered, at = [], 0
    for skip, length in spans:
        ordered.append((at + skip, at + skip + length))
        at += skip + length
    found = merged(ordered, gap)
    covered = {i for start, stop in found for i in range(start, stop)}
    assert covered >= {i for start, stop in ordered for i in range(start, stop)}
    assert all(b[0] - a[1] >= gap for a, b in pairwise(found))


# Plans and figures.


@pytest.mark.row("B-01")
def test_a_batch_takes_the_smallest_plan_that_holds_it() -> None:
    sizes = {"decode": (1, 2, 4, 8, 24), "mixed": (16, 64)}
    plans = [
        Plan(10 * i + j, phase, size, 1, 0)
        for i, phase in enumerate(sizes)
        for j, size in enumerate(sizes[phase])
    ]
    for most in range(1, 30):
        table = plans_in_use(plans, most, 64)
        for rows in range(1, most + 1):
            for tokens in range(rows, 65):
                fits = [p for p in plans if p.size >= tokens]
                decode = [p for p in fits if p.phase == "decode" and rows == tokens]
                wanted = min(
                    decode or [p for p in fits if p.phase == "mixed"], key=lambda p: p.size
                )
                assert table.choose(rows, tokens) is wanted, (most, rows, tokens)


def test_figures_name_the_device_and_the_steps_without_graph() -> None:
    llm = open_toy(FakeCuda(), max_num_seqs=1)
    output = llm.generate([[1, 2]], SamplingParams(max_tokens=9, ignore_eos=True))[0]
    found = figures(llm, output, 0.0, 0.1)
    assert found["device"] == "cuda:0 (NVIDIA H200)" and found["target"] == "sm_90:h200"
    assert found["decode_steps"] == 8 and found["decode_steps_without_graph"] == 0
    assert found["decode_ms_per_step"] > 0 and found["threads"] is None
    assert found["load_bytes"] > 0 and found["load_gb_per_second"] > 0 and found["graphs"] == 1
    parts = ["artifact", "device", "library", "weights", "buffers", "collector", "kernels"]
    assert [*found["start_seconds"]] == [*parts, "graphs", "cache", "first_token"]
    assert found["peak_host_bytes"] > 1 << 20
    lines = figure_lines(compared(found, llm.device.read_bandwidth(0.1)))
    assert "ms a step, cuda:0 (NVIDIA H200)" in lines[2] and lines[3].endswith("4000.0 measured")
