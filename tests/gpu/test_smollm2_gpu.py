"""SmolLM2 with its real weights: the GPU answers what the CPU answers, from one build.

KERNELGEN_SMOLLM2 names a checkpoint folder of SmolLM2-135M-Instruct, KERNELGEN_SMOLLM2_BUILDS
builds of it for this GPU and the CPU (`kernelgen build DIR --target cpu --target sm_90`), several
separated as in PATH.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.scoring import Case

from kernelgen.verify.model_cases import read_cases

CHECKPOINT, BUILDS = "KERNELGEN_SMOLLM2", "KERNELGEN_SMOLLM2_BUILDS"
NEW = 32
# Of the recorded prompt's logits, as on the CPU (tests/cpu/test_smollm2.py).
BOUND = {"float32": 5e-3, "bfloat16": 1.0}
QUESTIONS = (
    "What is the capital of France?",
    "Name three rivers of Europe.",
    "Write one sentence about the moon.",
    "How many legs does a spider have?",
    "Translate 'good morning' into Spanish.",
    "What is 7 times 8?",
    "Why is the sky blue?",
    "Who wrote Hamlet?",
    "Give me a recipe for tea.",
)


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    folder = os.environ.get(CHECKPOINT)
    if not folder:
        pytest.skip(f"{CHECKPOINT} names no checkpoint of SmolLM2")
    return Path(folder)


@pytest.fixture(params=os.environ.get(BUILDS, "").split(os.pathsep))
def build(request: pytest.FixtureRequest) -> Path:
    if not request.param:
        pytest.skip(f"{BUILDS} names no build of SmolLM2")
    return Path(request.param)


@cache
def opened(build: Path, checkpoint: Path, device: str) -> LLM:
    options = {"max_num_seqs": 16, "max_model_len": 512, "logit_rows": 64}
    return LLM(build, checkpoint, device=device, **options)


def prompts(llm: LLM) -> list[list[int]]:
    return [llm.chat_ids([{"role": "user", "content": text}]) for text in QUESTIONS]


def greedy(llm: LLM, given: list[list[int]]) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)
    return [output.token_ids for output in llm.generate(given, params)]


def fed(llm: LLM, given: list[list[int]], ids: list[tuple[int, ...]]) -> np.ndarray:
    """Logits where each id was chosen, [prompts, NEW, vocabulary]."""
    scores = llm.score([Case(tuple(p), row[:-1]) for p, row in zip(given, ids, strict=True)])
    rows = [np.concatenate([s.prefill_logits[-1:], s.decode_logits]) for s in scores]
    return np.stack(rows)


def margin(logits: np.ndarray) -> np.ndarray:
    top = np.partition(logits, -2, axis=-1)[..., -2:]
    return top[..., 1] - top[..., 0]


def test_greedy_answers_are_those_of_the_cpu(build: Path, checkpoint: Path) -> None:
    """Wherever the CPU's choice is larger than what the two differ by, in float32 everywhere."""
    gpu, cpu = (opened(build, checkpoint, device) for device in ("cuda", "cpu"))
    given = prompts(cpu)
    there = greedy(cpu, given)
    here, alone = greedy(gpu, given), [greedy(gpu, [prompt])[0] for prompt in given]
    wanted, found = fed(cpu, given, there), fed(gpu, given, there)
    same = wanted.argmax(-1) == found.argmax(-1)
    certain = margin(wanted) > 2 * np.abs(wanted - found).max(-1)
    print(f"{certain.mean():.1%} certain, {same.mean():.1%} equal, {here == there=}")
    assert same[certain].all() and certain.mean() > 0.5
    if gpu.manifest.model.activation_dtype == "float32":
        assert here == there == alone
    for mine in (here, alone):  # an answer may turn only where the CPU was not certain
        for row, other, sure in zip(mine, there, certain, strict=True):
            first = next((i for i in range(NEW) if row[i] != other[i]), None)
            assert first is None or not sure[first]


def test_recorded_logits(build: Path, checkpoint: Path) -> None:
    if not (checkpoint / "cases.npz").is_file():
        pytest.skip("the checkpoint has no recorded cases")
    gpu = opened(build, checkpoint, "cuda")
    (case,) = read_cases(checkpoint / "cases.npz")
    prefill, _ = gpu.logits(case.prompt_ids.tolist())
    error = float(np.abs(prefill - case.prefill_logits).max())
    print(f"largest error {error:.3g} of {np.abs(case.prefill_logits).max():.3g}")
    assert error <= BOUND[gpu.manifest.model.activation_dtype]
