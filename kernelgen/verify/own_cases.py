"""Owns cases for a model without recorded ones: its graph by the references of its ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelgen.ir.graph import Graph
from kernelgen.verify.evaluate import Chunk, Evaluator, feed
from kernelgen.verify.model_cases import Case, Floats

PROMPT_TOKENS = (3, 21)
FED_TOKENS = 4


def own_cases(graph: Graph, parameters: Mapping[str, Any], vocab: int) -> tuple[Case, ...]:
    """Random prompts and greedy continuations in float64; `parameters` by full name."""
    rng = np.random.default_rng(0)
    return tuple(
        _case(str(i), graph, parameters, rng.integers(0, vocab, count).tolist())
        for i, count in enumerate(PROMPT_TOKENS)
    )


def _case(key: str, graph: Graph, parameters: Mapping[str, Any], prompt: list[int]) -> Case:
    import torch

    capacity = len(prompt) + FED_TOKENS
    model = Evaluator(graph, parameters, dtype=torch.float64, capacity=capacity)

    def run(start: int, ids: list[int]) -> Floats:
        logits = model.step(feed([Chunk(0, start, ids)], every_logit=True))["logits"]
        found: Floats = logits.numpy().astype(np.float32)
        return found

    rows = [run(0, prompt)]
    fed: list[int] = []
    for n in range(FED_TOKENS):
        fed.append(int(rows[-1][-1].argmax()))
        rows.append(run(len(prompt) + n, fed[-1:]))
    decode = np.concatenate(rows[1:])
    before = np.concatenate([rows[0][-1:], decode[:-1]])
    top = np.sort(before, axis=1)[:, -2:]
    return Case(
        key=key,
        name=f"references, {len(prompt)} tokens",
        prompt_ids=np.asarray(prompt, np.int64),
        prefill_logits=rows[0],
        fed_ids=np.asarray(fed, np.int64),
        decode_logits=decode,
        margins=top[:, 1] - top[:, 0],
    )
