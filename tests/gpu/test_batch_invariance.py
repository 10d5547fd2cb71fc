"""A batch-invariant build on the GPU it was made for: a needle's bits in every company.

KERNELGEN_GPU_INVARIANT_BUILD names the build, made with --batch-invariant (a small model: random
weights are made for it).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from kernelgen_runtime import LLM

from tests.needle import hidden, needle_of

BUILD = "KERNELGEN_GPU_INVARIANT_BUILD"
CHUNKS = ((None, True), (64, True), (17, True), (1, False))


@pytest.fixture(scope="module")
def build() -> Path:
    if not (text := os.environ.get(BUILD)):
        pytest.skip(f"{BUILD} names no batch-invariant build for this GPU")
    return Path(text)


@pytest.mark.parametrize("told", [False, True], ids=["ids", "prompt told"])
def test_a_needle_in_random_batches_has_the_same_bits(build: Path, told: bool) -> None:
    """Chunked and whole, found in the cache or computed, graphs and mixed steps: ids and
    log-probabilities, bit for bit.
    """
    found: list[dict[str, Any]] = []
    for chunk, caching in CHUNKS:
        llm = LLM(
            build,
            "random:1",
            device="cuda",
            max_num_seqs=64,
            max_model_len=256,
            chunk_tokens=chunk,
            enable_prefix_caching=caching,
            kv_cache_memory_bytes=1 << 30,
        )
        needle = needle_of(llm.manifest.vocab, 170, 32)
        needle = needle if told else needle.without_prompt()
        found += hidden(llm, needle, (0, 1, 7, 30, 63), 220, seed=chunk or 0)
        del llm
    assert len(found) == 5 * len(CHUNKS) and len(found[0]["logprobs"]) == 32
    assert [i for i, one in enumerate(found) if one != found[0]] == []
