"""Batch-invariant builds: what the planner refuses, and bits that no company changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernelgen_runtime import LLM

from kernelgen.archs.registry import builtin_config
from kernelgen.cli.model import resolve
from kernelgen.cli.pipeline import all_plans, lowered, plan_model
from kernelgen.codegen.cuda.program import cuda_program
from kernelgen.compile.isa import machine_isas
from kernelgen.hw import parse_target
from kernelgen.planner.plan import Plan
from tests.model_builds import build, kernelgen, small_config
from tests.needle import hidden, needle_of

MODELS = ("qwen3-0.6b", "granite-swash-2b", "granite-swash-3b-a600m")


def cut(plan: Plan) -> list[tuple[Any, ...]]:
    """Kernels with their tiles, in order."""
    return [
        (launch.kernel.name, launch.kernel.match.family.name, tuple(launch.price.choice.items()))
        for launch in plan.launches
    ]


@pytest.mark.parametrize("target", ["sm_90", "sm_120", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_every_size_and_phase_has_the_same_kernels_with_the_same_tiles(
    name: str, target: str
) -> None:
    config = dict(builtin_config(name).data)
    graph = lowered(resolve(name), "bfloat16").graph
    assert config["vocab_size"]
    plans = all_plans(graph, parse_target(target), fusion=True, invariant=True)
    assert len({json.dumps(cut(plan)) for plan in plans}) == 1
    varying = plans[0].varying
    assert varying is not None
    assert not {family for _, family, _ in cut(plans[0])} & set(varying)
    assert {plan.phase for plan in plans} == {"decode", "mixed"}


def test_nothing_is_split_and_nothing_is_contracted() -> None:
    """A split would add its parts up by their number; a compiler contracts copies of a loop as it
    likes."""
    model = lowered(resolve("qwen3-0.6b"), "bfloat16")
    plans = all_plans(model.graph, parse_target("sm_90"), fusion=True, invariant=True)
    for _, _, choice in cut(plans[0]):
        assert dict(choice).get("splits", 1) == 1 and dict(choice).get("parts", 1) == 1
    program = cuda_program(plans, 90, model.spec.vocab, model.spec.max_positions)
    following = [one.unit for kernel in program.following.values() for one in kernel.passes]
    kernels = [one.unit for kernel in program.kernels.values() for one in kernel.passes]
    assert following and kernels
    assert all(("enable_fp_fusion", False) in unit.options for unit in [*kernels, *following])


def test_ordinary_plans_vary() -> None:
    """Else this file would test nothing."""
    model = resolve("qwen3-0.6b")
    one, many = (plan_model(model, "sm_90", phase="decode", size=size) for size in (1, 64))
    assert cut(one) != cut(many) and one.varying is None and "varying" not in one.to_json()


def test_the_plan_says_what_it_refused() -> None:
    done = kernelgen(
        "plan", "qwen3-0.6b", "--target", "sm_90", "--batch-invariant", "--explain", "--batch", 8
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "batch-invariant: every size and both phases have this cut" in text
    assert "attention_decode: how many parts a request's cache is read in follows" in text
    assert "skinny: it takes few rows" in text
    plan = plan_model(resolve("qwen3-0.6b"), "cpu", phase="decode", size=3, invariant=True)
    assert plan.to_json()["varying"] == {}


def test_tables_and_invariance_exclude_each_other() -> None:
    for verb in ("plan", "build"):
        options = ("--target", "sm_90", "--batch-invariant", "--require-tuned")
        done = kernelgen(verb, "qwen3-0.6b", *options)
        assert done.returncode == 2 and "leave out one of" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def window_config() -> dict[str, Any]:
    """Layers with a window of 20 tokens and layers without, in turn."""
    from kernelgen.archs import granite_swa

    tiny = json.loads((Path(granite_swa.__file__).parent / "tiny.json").read_text())
    return {**tiny, "max_position_embeddings": 512}


CHUNKS = ((None, True), (16, True), (7, True), (1, False))


@pytest.mark.parametrize("kind", ["full", "window"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("isa", ["avx2", "avx512", "avx512_bf16"])
def test_a_needle_in_random_batches_has_the_same_bits(
    tmp_path: Path, isa: str, dtype: str, kind: str
) -> None:
    """Chunked and whole, found in the cache or computed: ids and log-probabilities, bit for bit."""
    if isa not in machine_isas(Path("/proc/cpuinfo").read_text()):
        pytest.skip(f"this processor has no {isa}")
    config = small_config(2) if kind == "full" else window_config()
    folder = build(config, tmp_path, isas=(isa,), dtype=dtype, invariant=True)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["targets"][0]["batch_invariant"] is True
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for chunk, caching in CHUNKS:
        llm = LLM(
            folder,
            "random:3",
            device="cpu",
            threads=1,
            max_num_seqs=12,
            max_model_len=96,
            chunk_tokens=chunk,
            enable_prefix_caching=caching,
            kv_cache_memory_bytes=64 << 20,
        )
        needle = needle_of(llm.manifest.vocab, 37, 10)
        for one, told in ((needle, True), (needle.without_prompt(), False)):
            found[told] += hidden(llm, one, (0, 1, 5, 11), 40, seed=chunk or 0)
    for told, all_of in found.items():
        assert len(all_of) == 4 * len(CHUNKS)
        assert all(one == all_of[0] for one in all_of)
        assert bool(all_of[0]["prompt_logprobs"]) is told and len(all_of[0]["logprobs"]) == 10
