"""Whatever a program hands the offline interface is either served or one line of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.artifact.open import open_artifact
from kernelgen_runtime.errors import (
    CapacityError,
    KernelgenRuntimeError,
    NoArtifactError,
    RequestError,
    WeightsError,
)
from kernelgen_runtime.scoring import Case
from runtime_fakes import VOCAB
from test_runtime_llm import open_toy

TWO = SamplingParams(max_tokens=2, ignore_eos=True)
STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 5, 2**31, 10**400, 0.5, float("nan"), float("inf"), 1j),
    *("", "auto", "\ud800", "\0", b"a", (), [], {}, set(), ("a",), [[1], None], (10**9,)),
    *({1: 2}, {"a": float("nan")}, range(3), object(), len, int),
    *(np.int64(3), np.float32(0.5), np.array([1, 2]), np.array([]), torch.tensor([1])),
)
OPTIONS = (
    *("device", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "threads"),
    *("kv_cache_memory_bytes", "gpu_memory_utilization", "chunk_tokens", "logit_rows", "graphs"),
    *("scheduling_policy", "async_scheduling", "enable_prefix_caching", "watermark"),
    "prefix_cache_retention_interval",
)
WAYS: dict[str, Callable[[LLM, Any], object]] = {
    "prompts": lambda llm, value: llm.generate(value, TWO),
    "prompt": lambda llm, value: llm.generate([[1], value], TWO),
    "id": lambda llm, value: llm.generate([[1], [2, value]], TWO),
    "params": lambda llm, value: llm.generate([[1]], value),
    "each params": lambda llm, value: llm.generate([[1]], [value]),
    "priority": lambda llm, value: llm.generate([[1]], TWO, priority=value),
    "each priority": lambda llm, value: llm.generate([[1]], TWO, priority=[value]),
    "salt": lambda llm, value: llm.generate([[1]], TWO, cache_salt=value),
    "stream": lambda llm, value: list(llm.stream(value, TWO)),
    "params of a stream": lambda llm, value: list(llm.stream([1], value)),
    "logits": lambda llm, value: llm.logits(value),
    "fed": lambda llm, value: llm.logits([1], value),
    "case": lambda llm, value: llm.score([Case(value, value)]),
}


def is_one_of_ours(error: KernelgenRuntimeError) -> bool:
    return 0 < len(str(error)) < 500 and "\ud800" not in str(error)


@pytest.mark.parametrize("way", WAYS)
def test_strange_values_are_served_or_refused(way: str) -> None:
    llm = open_toy()
    for value in STRANGE:
        try:
            WAYS[way](llm, value)
        except KernelgenRuntimeError as error:
            assert is_one_of_ours(error), value
        assert not llm.engine.scheduler.has_work, value
    assert len(llm.generate([[1]], TWO)[0].token_ids) == 2, "it lives on"


@pytest.mark.parametrize("name", SamplingParams.__dataclass_fields__)
def test_strange_parameters_are_served_or_refused(name: str) -> None:
    llm = open_toy()
    for value in STRANGE:
        try:
            llm.generate([[1, 2, 3]], SamplingParams(**{name: value}))
        except KernelgenRuntimeError as error:
            said = str(error).replace(" ", "_")
            is_named = name in said or "this_artifact_was_built_without" in said
            assert is_one_of_ours(error) and is_named, value


@pytest.mark.parametrize("name", OPTIONS)
def test_strange_options_are_taken_or_refused(name: str) -> None:
    for value in STRANGE:
        if name == "kv_cache_memory_bytes" and isinstance(value, int) and value == 2**31:
            continue  # a cache of 16 million pages of a toy
        try:
            assert open_toy(**{name: value}).generate([[1, 2, 3], [4] * 40], TWO)
        except KernelgenRuntimeError as error:
            said = str(error).replace("--", "").replace("-", "_")
            assert is_one_of_ours(error) and name in said, value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threads": 0}, "threads must be from 1 to 256, or none, is 0"),
        ({"logit_rows": 0}, "logit_rows must be 1 or more, or none, is 0"),
        ({"gpu_memory_utilization": 1.5}, "must be above 0 and at most 1, is 1.5"),
        ({"graphs": "no"}, "graphs must be true or false, is 'no'"),
    ],
)
def test_ranges_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CapacityError, match=words):
        open_toy(**options)


def test_one_prompt_without_its_list_is_told_so() -> None:
    llm = open_toy()
    for value in ("text", [1, 2], b"ab", {"a": 1}):
        with pytest.raises(RequestError, match="put a single prompt into a list"):
            llm.generate(value)


def test_arrays_of_numpy_are_prompts() -> None:
    llm, greedy = open_toy(), SamplingParams(temperature=0.0)
    prompts = np.array([[1, 2, 3], [4, 5, VOCAB - 2]])
    of_arrays, of_rows, of_lists = (
        [output.token_ids for output in llm.generate(given, greedy)]
        for given in (prompts, list(prompts), prompts.tolist())
    )
    assert of_arrays == of_rows == of_lists


def test_room_for_logits_is_at_least_one_row_a_request() -> None:
    llm = open_toy(max_num_seqs=8, logit_rows=1)
    assert len(llm.generate([[n] for n in range(8)], TWO)) == 8


def test_a_stream_goes_on_beside_a_batch() -> None:
    llm, greedy = open_toy(), SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    wanted = llm.generate([[1, 2]], greedy)[0].token_ids
    stream = llm.stream([1, 2], greedy)
    stream.begin()
    llm.engine.step()
    assert llm.generate([[3]], SamplingParams(max_tokens=4, ignore_eos=True))
    while not stream.is_finished:
        llm.engine.step()
    assert stream.output().token_ids == wanted


def test_paths_and_keys_of_other_kinds() -> None:
    for value in STRANGE:
        if isinstance(value, str):
            continue
        with pytest.raises(NoArtifactError, match=r"must be a folder or a \.whl file"):
            open_artifact(value)
    with pytest.raises(WeightsError, match=r"weights: must be a folder or random\[:SEED\], is 5"):
        LLM("nowhere", 5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="is a int") as found:
        open_toy(watermark=123456)
    assert "123456" not in str(found.value), "a key is a secret"
