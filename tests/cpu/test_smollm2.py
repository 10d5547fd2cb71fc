"""The real small model, built and run: recorded logits, greedy ids, one answer, memory,
rebuilds."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.scoring import Case
from model_builds import environment, this_isa

from kernelgen.verify.model_cases import Case as Recorded
from kernelgen.verify.model_cases import read_cases

# float32: of contracts.md. bfloat16: transformers' own bfloat16 run is 1.63 off its float32 run on
# this prompt; ours has to be clearly better than that. It was chosen when an early build had shown
# 0.61 (and one with a bfloat16 stream 1.75): it guards what was reached, it did not predict it.
BOUND = {"float32": 5e-3, "bfloat16": 1.0}
SLACK_BYTES = 400 * 10**6
REBUILD_SECONDS = 3.0


@pytest.fixture(scope="module")
def recorded(smollm2: Path) -> Recorded:
    """The one recorded case: 44 prompt tokens and 36 greedy ones."""
    (case,) = read_cases(smollm2 / "cases.npz")
    return case


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def subject(
    request: pytest.FixtureRequest, smollm2: Path, smollm2_builds: Callable[[str], Path]
) -> tuple[LLM, float]:
    """The loaded model, and the bound of its dtype."""
    built = smollm2_builds(request.param)
    llm = LLM(built, smollm2, max_num_seqs=4, max_model_len=512, threads=2, logit_rows=64)
    return llm, BOUND[request.param]


def test_logits_and_greedy_ids(subject: tuple[LLM, float], recorded: Recorded) -> None:
    llm, bound = subject
    prompt, fed = recorded.prompt_ids.tolist(), recorded.fed_ids.tolist()
    prefill, decode = llm.logits(prompt, fed)
    assert np.abs(prefill - recorded.prefill_logits).max() <= bound
    chosen = np.concatenate([prefill[-1:], decode])[: len(fed)].argmax(1)
    certain = recorded.margins > bound
    assert certain.sum() >= 20  # of 36: the test has something to say
    assert (chosen == recorded.fed_ids)[certain].all()


def test_decoding_gives_the_bits_of_prefill(subject: tuple[LLM, float], recorded: Recorded) -> None:
    """Batch 1, a mixed batch, one token at a time and all at once."""
    llm, _ = subject
    prompt, fed = tuple(recorded.prompt_ids.tolist()), tuple(recorded.fed_ids.tolist())
    whole = llm.score([Case(prompt + fed)])[0].prefill_logits
    cases = [Case(prompt, fed), Case(prompt[:7], prompt[7:]), Case((prompt + fed)[:33])]
    for case, score in zip(cases, llm.score(cases), strict=True):
        mine = np.concatenate([score.prefill_logits, score.decode_logits])
        assert np.array_equal(mine, whole[: len(mine)]), case


def test_greedy_ids_in_a_batch_are_those_alone(
    subject: tuple[LLM, float], recorded: Recorded
) -> None:
    llm, _ = subject
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompt = recorded.prompt_ids.tolist()
    prompts = [prompt, prompt[:5], prompt[3:40]]
    together = [output.token_ids for output in llm.generate(prompts, params)]
    assert together == [llm.generate([ids], params)[0].token_ids for ids in prompts]


def test_no_schedule_changes_a_token(
    smollm2: Path,
    smollm2_builds: Callable[[str], Path],
    subject: tuple[LLM, float],
    recorded: Recorded,
) -> None:
    """A cache for little more than one request, steps of 12, prefixes shared: ids as alone."""
    llm, _ = subject
    params = SamplingParams(temperature=0.0, max_tokens=36, ignore_eos=True)
    whole = recorded.prompt_ids.tolist()
    prompts = [whole[:20], [*whole[:16], 5], whole[:9], whole]
    alone = [llm.generate([ids], params)[0].token_ids for ids in prompts]
    page = llm.manifest.cache.page_bytes
    tight = LLM(
        smollm2_builds(llm.manifest.model.activation_dtype),
        smollm2,
        max_num_seqs=3,
        max_model_len=80,
        max_num_batched_tokens=12,
        kv_cache_memory_bytes=7 * page,
        async_scheduling=True,
        threads=2,
    )
    assert [output.token_ids for output in tight.generate(prompts, params)] == alone
    assert tight.engine.scheduler.preemptions > 0
    (again,) = tight.generate(prompts[3:], params)
    assert again.token_ids == alone[3] and again.cached_tokens > 0


def test_the_answer_is_right_and_memory_is_bounded(
    smollm2: Path, smollm2_builds: Callable[[str], Path]
) -> None:
    """`run` in a process of its own; its peak is read where the kernel counts it."""
    built, cache = smollm2_builds("bfloat16"), 64 << 20
    code = (
        "import sys; from kernelgen_runtime.cli import main; code = main(sys.argv[1:])\n"
        "status = open('/proc/self/status').read().split()\n"
        "print(status[status.index('VmHWM:') + 1], file=sys.stderr); sys.exit(code)"
    )
    arguments = ["run", built, "--weights", smollm2, "--prompt", "What is the capital of France?"]
    arguments += ["--max-tokens", 24, "--temperature", 0, "--json", "--bandwidth-seconds", 0]
    arguments += ["--kv-cache-memory-bytes", cache, "--max-model-len", 1024]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in json.loads(done.stdout)["text"]
    weights = (smollm2 / "model.safetensors").stat().st_size
    assert int(done.stderr.split()[-1]) * 1024 <= weights + cache + SLACK_BYTES


def test_building_again_takes_a_moment(
    smollm2: Path, smollm2_builds: Callable[[str], Path], tmp_path: Path
) -> None:
    """Nothing has changed: no compiler runs, and the wheel is the same file."""
    smollm2_builds("bfloat16")
    code = (
        "import sys; from pathlib import Path; from kernelgen.cli.building import build_model\n"
        "from kernelgen.cli.model import resolve\n"
        "model, out = resolve(sys.argv[2]), Path(sys.argv[3])\n"
        "made = build_model(model, ['cpu'], out, isas=[sys.argv[1]])\n"
        "print(made.steps == made.cached)"
    )
    seconds, wheels = [], []
    for turn in ("a", "b", "c"):
        argv = [sys.executable, "-c", code, this_isa(), str(smollm2), str(tmp_path / turn)]
        start = time.perf_counter()
        done = subprocess.run(argv, capture_output=True, text=True, env=environment(), check=True)
        seconds.append(time.perf_counter() - start)
        assert done.stdout == "True\n"
        wheels.append(next((tmp_path / turn).glob("*.whl")).read_bytes())
    assert min(seconds) <= REBUILD_SECONDS
    assert len(set(wheels)) == 1
