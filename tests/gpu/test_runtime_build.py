"""A real build on the GPU it was made for: graphs, padding, poison, and sizes at their edges.

KERNELGEN_GPU_BUILD names the build (a small model: random weights are made for it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.artifact.open import open_artifact
from kernelgen_runtime.device.choose import choose
from kernelgen_runtime.errors import CapacityError
from kernelgen_runtime.schedule.step import Step

GREEDY = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 25, 31)


@dataclass(frozen=True)
class Taken:
    """What a step left behind: ids of its rows, logits of the logit rows."""

    ids: list[int]
    logits: np.ndarray

    def same(self, other: Taken) -> bool:
        """Bit for bit; a NaN that is one on both sides would be equal, so there may be none."""
        assert np.isfinite(self.logits).all() and np.isfinite(other.logits).all()
        bits = (self.logits.view(np.int32), other.logits.view(np.int32))
        return self.ids == other.ids and np.array_equal(*bits)


@pytest.fixture(scope="module")
def llm(gpu_build: Path) -> LLM:
    return LLM(
        gpu_build,
        "random:1",
        device="cuda",
        max_num_seqs=32,
        max_model_len=512,
        enable_prefix_caching=False,  # what is free is poisoned, and steps start from nothing
    )


def decode_step(llm: LLM, rows: int) -> Step:
    """A decode step of `rows` requests of different lengths, none of its ids in flight."""
    vocab = llm.manifest.vocab
    for i in range(rows):
        prompt = [(31 * i + 7 * j) % vocab for j in range(1 + 23 * i % 150)]
        llm.stream(prompt, replace(GREEDY, max_tokens=100)).begin()
    scheduler = llm.engine.scheduler
    tenants = scheduler._tenants
    while len(scheduler.waiting) or (tenants.counts.todo(tenants.slots) != 1).any():
        llm.engine.step()
    llm.engine.drain()
    step = scheduler.schedule()
    assert step is not None and len(step.rows) == rows and step.is_decode
    return step


def finish(llm: LLM, step: Step, taken: Taken) -> None:
    scheduler = llm.engine.scheduler
    scheduler.settle(step, taken.ids)
    for request in list(scheduler.running):
        scheduler.finish(request, "abort")
    assert not scheduler.has_work


def run(llm: LLM, step: Step, before: Callable[[], None] = lambda: None) -> Taken:
    """Run a decode step (any number of times: it writes what it wrote before)."""
    runner: Any = llm.program._runner
    with torch.cuda.device(runner._device.place):
        runner._api.synchronize()
        before()
        runner._api.synchronize()
    flight = llm.program.launch(step, logits=True)
    return Taken(llm.program.wait(flight).tolist(), runner.logits(len(step.rows)).copy())


@pytest.mark.row("B-07")
@pytest.mark.parametrize("rows", SIZES)
def test_replay_equals_eager_bit_for_bit(llm: LLM, rows: int) -> None:
    step = decode_step(llm, rows)
    replayed = run(llm, step)
    runner: Any = llm.program._runner
    with mock.patch.object(runner._graphs, "replay", lambda plan: False):
        eager = run(llm, step)
    again = run(llm, step)
    finish(llm, step, eager)
    assert replayed.same(eager) and again.same(eager)


def poison(llm: LLM) -> None:
    """Fill with ones (NaN in every dtype) all that a step must not depend on."""
    runner: Any = llm.program._runner
    bound = runner._bound
    cache, tables = bound["cache"], llm.engine.scheduler.cache
    bound["workspace"].fill_(0xFF)
    bound["logits"].fill_(float("nan"))
    bound["sampled"].fill_(-7)
    held = {int(p) for table in tables.tables for p in np.unique(table)}
    free = [page for page in range(min(len(cache), 2000)) if page not in held or page == 0]
    cache[torch.tensor(free, device=cache.device)] = 0xFF
    # Arguments beyond what the step uses.
    writer, words = runner._next.args, runner._args.tensor
    for name in ("top_k", "seed", "top_p", "logit_token"):
        field = writer.fields[name]
        field.view(np.int32)[-max(1, len(field) // 4) :] = 0x7FC00000
    words.fill_(0x7FC00000)
    runner._args._is_known = False


@pytest.mark.parametrize("rows", SIZES)
def test_padding_and_null_page_hold_nan_and_nothing_changes(llm: LLM, rows: int) -> None:
    step = decode_step(llm, rows)
    clean = run(llm, step)
    runner: Any = llm.program._runner
    try:
        poisoned = run(llm, step, lambda: poison(llm))
    finally:
        runner._bound["cache"][0].zero_()
    finish(llm, step, clean)
    assert poisoned.same(clean)


def test_a_step_without_tokens_changes_nothing(llm: LLM) -> None:
    runner: Any = llm.program._runner
    runner._api.synchronize()
    names = ("cache", "last_sampled", "sampled", "logits")
    before = {name: runner._bound[name].clone() for name in names}
    for plan in llm.program._plans.all:
        for replay in (runner._graphs.replay, lambda plan: False):
            runner.args().write_nothing(plan)
            with mock.patch.object(runner._graphs, "replay", replay):
                assert runner.start(plan, 0)().ids.tolist() == []
    runner._api.synchronize()
    for name, tensor in before.items():
        assert torch.equal(tensor.view(torch.uint8), runner._bound[name].view(torch.uint8)), name


def test_graphs_and_eager_generate_the_same(gpu_build: Path, llm: LLM) -> None:
    eager = LLM(
        gpu_build, "random:1", device="cuda", max_num_seqs=32, max_model_len=512, graphs=False
    )
    prompts = [[(i * 13 + j) % llm.manifest.vocab for j in range(3 + 9 * i)] for i in range(12)]
    params = [replace(GREEDY, temperature=0.8 * (i % 2), seed=i, top_k=20) for i in range(12)]
    one, two = (
        [output.token_ids for output in model.generate(prompts, params)] for model in (llm, eager)
    )
    assert one == two
    assert llm.program.eager_decodes == 0


def test_a_batch_beyond_the_ladder(gpu_build: Path, llm: LLM) -> None:
    artifact = open_artifact(gpu_build)
    choice = choose(artifact.manifests, "cuda")
    plans = tuple(p for p in choice.manifest.plans if p.phase == "mixed" or p.size <= 2)
    choice = replace(choice, manifest=replace(choice.manifest, plans=plans))
    short = LLM(artifact, "random:1", device=choice, max_num_seqs=6, max_model_len=512)
    prompts = [[i + 1, i + 2] for i in range(6)]
    outputs = short.generate(prompts, GREEDY)
    assert all(len(output.token_ids) == 20 for output in outputs)
    assert short.program.eager_decodes > 10
    assert all(0 <= i < llm.manifest.vocab for output in outputs for i in output.token_ids)


def test_a_context_beyond_the_cache(gpu_build: Path) -> None:
    artifact = open_artifact(gpu_build)
    page = choose(artifact.manifests, "cuda").manifest.cache.page_bytes
    with pytest.raises(CapacityError, match="longest that fits"):
        LLM(
            artifact,
            "random:1",
            device="cuda",
            max_num_seqs=1,
            max_model_len=512,
            kv_cache_memory_bytes=8 * page,
        )


def test_preempted_requests_end_as_if_they_were_alone(gpu_build: Path, llm: LLM) -> None:
    """A cache for about two of four requests; ids where graphs and batches agree on them."""
    manifest = llm.manifest
    groups = len(manifest.cache.groups)
    tight = LLM(
        gpu_build,
        "random:1",
        device="cuda",
        max_num_seqs=4,
        max_model_len=128,
        kv_cache_memory_bytes=(1 + 14 * groups) * manifest.cache.page_bytes,
    )
    params = replace(GREEDY, max_tokens=60)
    outputs = tight.generate([[i + 1] * 30 for i in range(4)], params)
    assert all(len(output.token_ids) == 60 for output in outputs)
    assert tight.engine.scheduler.preemptions > 0 and not tight.engine.scheduler.has_work
