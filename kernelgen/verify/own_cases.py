"""Owns what the references of a model's ops give: cases where none were recorded, bfloat16 runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernelgen.ir.graph import Graph
from kernelgen.verify.evaluate import Chunk, Evaluator, feed
from kernelgen.verify.model_cases import Case, Floats

PROMPT_TOKENS = (3, 21)
FED_TOKENS = 4


def own_cases(graph: Graph, parameters: Mapping[str, Any], vocab: int) -> tuple[Case, ...]:
    """Random prompts and greedy continuations in float64; `parameters` by full name.

    `graph` is the one of float32 activations: of it only what weights are stored as is rounded.
    """
    rng = np.random.default_rng(0)
    return tuple(
        _case(str(i), graph, parameters, rng.integers(0, vocab, count).tolist())
        for i, count in enumerate(PROMPT_TOKENS)
    )


def with_narrow_runs(
    cases: Sequence[Case], graph: Graph, parameters: Mapping[str, Any]
) -> tuple[Case, ...]:
    """The cases, each with a bfloat16 run: its own, else the ops' references with rounding.

    `graph` is the one of bfloat16 activations.
    """
    return tuple(c if c.narrow else _narrowed(c, graph, parameters) for c in cases)


def _narrowed(case: Case, graph: Graph, parameters: Mapping[str, Any]) -> Case:
    prompt = len(case.prompt_ids)
    ids = np.concatenate([case.prompt_ids, case.fed_ids[: len(case.decode_logits)]]).tolist()
    logits = _run(_model(graph, parameters, len(ids)), 0, ids)
    return replace(
        case,
        narrow=(logits[:prompt], logits[prompt:]),
        narrow_source="the ops' references rounded to bfloat16",
    )


def _case(key: str, graph: Graph, parameters: Mapping[str, Any], prompt: list[int]) -> Case:
    model = _model(graph, parameters, len(prompt) + FED_TOKENS)
    rows = [_run(model, 0, prompt)]
    fed: list[int] = []
    for n in range(FED_TOKENS):
        fed.append(int(rows[-1][-1].argmax()))
        rows.append(_run(model, len(prompt) + n, fed[-1:]))
    decode = np.concatenate(rows[1:])
    top = np.sort(np.concatenate([rows[0][-1:], decode[:-1]]), axis=1)[:, -2:]
    return Case(
        key=key,
        name=f"references, {len(prompt)} tokens",
        prompt_ids=np.asarray(prompt, np.int64),
        prefill_logits=rows[0],
        fed_ids=np.asarray(fed, np.int64),
        decode_logits=decode,
        margins=top[:, 1] - top[:, 0],
    )


def _model(graph: Graph, parameters: Mapping[str, Any], capacity: int) -> Evaluator:
    import torch

    return Evaluator(graph, parameters, dtype=torch.float64, capacity=capacity, rounded=True)


def _run(model: Evaluator, start: int, ids: list[int]) -> Floats:
    logits = model.step(feed([Chunk(0, start, ids)], every_logit=True))["logits"]
    found: Floats = logits.numpy().astype(np.float32)
    return found
