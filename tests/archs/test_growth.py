"""Time against the number of layers: equal layers are lowered once."""

from __future__ import annotations

import gc
import time
from dataclasses import replace

from conftest import Subject

from kernelgen.core.dtypes import BFLOAT16

RUNS = 60
GROWTH = 1.2
CLOCK = 50e-6  # seconds; lowering takes a quarter of a millisecond, so the clock has its say


def test_sixty_layers_cost_hardly_more_than_six(subject: Subject) -> None:
    """The tiny model with its layers repeated; the best of runs that take turns."""
    spec = subject.spec
    best = {6: float("inf"), 60: float("inf")}
    gc.disable()
    try:
        for _ in range(RUNS):
            for layers in best:
                longer = replace(spec, layers=(spec.layers * layers)[:layers])
                start = time.perf_counter()
                graph = subject.architecture.lower(longer, BFLOAT16)
                best[layers] = min(best[layers], time.perf_counter() - start)
                assert len(graph.sequence) == layers + 2
    finally:
        gc.enable()
    assert best[60] <= GROWTH * best[6] + CLOCK, best
