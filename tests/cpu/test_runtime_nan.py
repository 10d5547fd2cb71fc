"""A NaN among logits ends the request that they belong to; unread logits are not asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda
from kernelgen_runtime import LLM, SamplingParams
from kernelgen_runtime.errors import LaunchError
from kernelgen_runtime.sample.reference import sample
from runtime_fakes import oracle
from safetensors.torch import load_file, save_file
from test_runtime_fake_gpu import library as library_on
from test_runtime_fake_gpu import open_toy as open_on
from test_runtime_llm import library, open_toy
from verify_build import Small, build, checkpoint, small

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
HOT = SamplingParams(max_tokens=6, temperature=0.8, top_k=5, seed=3, ignore_eos=True)
DAMAGED = 7
"""a token of the toy model after which its logits are NaN"""


def damaged_toy(**options: Any) -> LLM:
    llm = open_toy(**options)
    library(llm).damaged = DAMAGED
    return llm


@pytest.mark.parametrize("params", [GREEDY, HOT])
def test_only_the_request_whose_logits_are_nan_ends(params: SamplingParams) -> None:
    llm = damaged_toy(max_num_seqs=2)
    good, bad = llm.generate([[1, 2], [3, DAMAGED, 4]], params)
    sampling = {"temperature": params.temperature, "top_k": params.top_k, "seed": params.seed or 0}
    assert list(good.token_ids) == oracle([1, 2], 8, **sampling) and good.error == ""
    assert (bad.token_ids, bad.finish_reason) == ((), "error")
    assert bad.error == "logits are NaN after 3 tokens (are the weights damaged?)"
    again = llm.generate([[1, 2]], params)[0]
    assert again.token_ids == good.token_ids, "its slot and its pages are free again"


def test_a_stream_raises_what_happened() -> None:
    llm = damaged_toy()
    with pytest.raises(LaunchError, match="logits are NaN after 2 tokens"):
        list(llm.stream([1, DAMAGED], GREEDY))
    assert not llm.engine.scheduler.has_work


def test_logits_are_asked_for_only_where_they_are_read() -> None:
    llm = open_toy(max_num_seqs=2)
    llm.generate([[1, 2], [3]], GREEDY)
    assert library(llm).unread == 12, "every token of both requests"
    prefill, _ = llm.logits([1, 2, 3])
    assert np.isfinite(prefill).all() and library(llm).unread == 12
    llm.generate([[1, 2]], HOT)
    assert library(llm).unread == 12, "a sampler with a temperature reads them"


@pytest.mark.parametrize("graphs", [True, False])
def test_with_steps_in_flight_as_well(graphs: bool) -> None:
    """The step after the one that failed has been launched by then: its result is nobody's."""
    llm = open_on(FakeCuda(), graphs=graphs, max_num_seqs=2)
    library_on(llm).damaged = DAMAGED
    good, bad = llm.generate([[1, 2], [3, DAMAGED, 4]], GREEDY)
    assert list(good.token_ids) == oracle([1, 2], 8)
    assert (bad.finish_reason, bad.token_ids) == ("error", ()) and "NaN" in bad.error
    assert library_on(llm).unread > 0


@pytest.mark.parametrize("params", [GREEDY, HOT, SamplingParams(temperature=1.0, seed=1)])
def test_one_nan_among_a_compiled_librarys_logits(params: SamplingParams, tmp_path: Path) -> None:
    """The head gives one NaN to every row: a maximum that overlooks it would choose a token."""
    subject: Small = small()
    weights = checkpoint(tmp_path / "w", subject)
    folder = build(tmp_path / "b", subject, "float32")
    path = weights / "model.safetensors"
    tensors = load_file(path)
    vocab = subject.spec.vocab
    head = next(n for n, t in reversed(tensors.items()) if t.ndim == 2 and len(t) == vocab)
    tensors[head][vocab - 3, 5] = float("nan")  # behind the last whole vector of a row
    save_file(tensors, path)
    llm = LLM(folder, weights, device="cpu", threads=2)
    (output,) = llm.generate([[1, 2, 3]], params)
    assert (output.finish_reason, output.token_ids) == ("error", ())
    tensors[head][vocab - 3, 5] = 0.0
    save_file(tensors, path)
    (output,) = LLM(folder, weights, device="cpu", threads=2).generate([[1, 2, 3]], params)
    assert output.error == "" and len(output.token_ids) == params.max_tokens


def test_the_reference_sees_a_nan_too() -> None:
    logits = np.array([1.0, np.nan, 3.0], np.float32)
    assert sample(logits, 0) == -2 and sample(logits, 0, temperature=1.0, top_k=1) == -2
