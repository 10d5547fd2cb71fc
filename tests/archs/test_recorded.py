"""Graphs by references against logits recorded from transformers, in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import HERE, folders, subject_of

pytest.importorskip("transformers")

from make_tiny import make
from oracle_cases import Case, read_cases
from variants import VARIANTS

from kernelgen.archs.registry import find_architecture
from kernelgen.core.dtypes import FLOAT32
from kernelgen.spec.config import read_config
from kernelgen.verify.evaluate import Chunk, Evaluator, feed
from kernelgen.verify.parameters import load_parameters

TINY_BOUND = 1e-4  # float32 of the framework against float64
REAL_BOUND = 5e-3

TINY = [
    pytest.param(folder, variant, id=f"{folder.name}-{variant}")
    for folder in folders()
    if folder.parent != HERE
    for variant in VARIANTS[folder.name]
]


def evaluator(folder: Path, capacity: int) -> Evaluator:
    config = read_config(folder / "config.json")
    architecture = find_architecture(config)
    spec = architecture.read(config)
    graph = architecture.lower(spec, FLOAT32)
    weights = load_parameters(folder, architecture.checkpoint(spec, graph))
    return Evaluator(graph, weights, dtype=torch.float64, capacity=capacity)


def worst(folder: Path, case: Case) -> float:
    """Largest difference of a logit, prefill and continuation."""
    prompt, fed = case.prompt_ids.tolist(), case.fed_ids.tolist()
    runner = evaluator(folder, len(prompt) + len(fed))
    logits = [runner.step(feed([Chunk(0, 0, prompt)], every_logit=True))["logits"]]
    expected = [case.prefill_logits]
    if len(case.decode_logits):
        chunk = Chunk(0, len(prompt), fed)
        logits.append(runner.step(feed([chunk], every_logit=True))["logits"])
        expected.append(case.decode_logits)
    return float(np.abs(torch.cat(logits).numpy() - np.concatenate(expected)).max())


@pytest.mark.row("R-043")
@pytest.mark.row("R-044")
@pytest.mark.parametrize(("folder", "variant"), TINY)
def test_tiny(folder: Path, variant: str, tmp_path: Path) -> None:
    make(subject_of(folder).config, tmp_path, variant=variant)
    cases = read_cases(tmp_path)
    assert len({len(c.prompt_ids) for c in cases}) >= 3
    assert max(worst(tmp_path, case) for case in cases) <= TINY_BOUND


def test_the_real_small_model(smollm2: Path) -> None:
    (case,) = read_cases(smollm2)
    assert worst(smollm2, case) <= REAL_BOUND
