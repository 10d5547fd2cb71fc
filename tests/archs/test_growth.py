"""Time against the number of layers: equal layers are lowered once."""

from __future__ import annotations

import time
from dataclasses import replace

from conftest import Subject

from kernelgen.core.dtypes import BFLOAT16

RUNS = 15
GROWTH = 1.2


def lowering_seconds(subject: Subject, layers: int) -> float:
    """Best of several runs, on the tiny model with its layers repeated."""
    spec = subject.spec
    repeated = (spec.layers * layers)[:layers]
    longer = replace(spec, layers=repeated)
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        graph = subject.architecture.lower(longer, BFLOAT16)
        best = min(best, time.perf_counter() - start)
    assert len(graph.sequence) == layers + 2
    return best


def test_sixty_layers_cost_hardly_more_than_six(subject: Subject) -> None:
    few, many = lowering_seconds(subject, 6), lowering_seconds(subject, 60)
    assert many <= GROWTH * few, f"{many * 1e3:.2f} ms for 60 layers, {few * 1e3:.2f} ms for 6"
