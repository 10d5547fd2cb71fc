"""Owns the clocks of a start: fresh processes to their first token, and what graphs add."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelgen.bench.case import Case, prompts
from kernelgen.bench.children import python_child
from kernelgen.bench.series import Series

ROUNDS = 3


@dataclass(frozen=True)
class StartFigures:
    """Seconds. Each process is a new one for one request; the smallest of the rounds counts, files
    in the page cache. `graphs_s`: what capturing the graphs of `graphs` decode sizes adds to
    getting ready; None on a device without graphs.
    """

    prompt: int
    process_to_first_token_s: Series
    imports_to_first_token_s: Series
    graphs: int
    graphs_s: float | None


def measure_start(
    build: Path, options: Sequence[str], weights: str, case: Case, vocab: int
) -> tuple[Series, Series]:
    """From process start, and from the end of its imports, to the first token.

    `options`: further ones of the runtime's `run`.
    """
    ids = ",".join(map(str, prompts(Case(1, case.prompt, case.tokens), vocab)[0]))
    command = [
        *("-m", "kernelgen_runtime", "run", str(build), "--weights", weights, *options),
        *("--prompt-ids", ids, "--max-tokens", "2", "--ignore-eos", "--temperature", "0"),
        *("--max-model-len", str(case.length), "--bandwidth-seconds", "0", "--json"),
    ]
    told = [python_child(command) for _ in range(ROUNDS)]
    clocks = ("process_start", "imports_done")
    names = [f"first_token_seconds_from_{clock}" for clock in clocks]
    process, imports = (Series.of([figures[name] for figures in told]) for name in names)
    return process, imports


def graph_seconds(make: Any, rounds: int = 2) -> float:
    """What graphs add to getting ready: `make(graphs)` makes the model, with all graphs or none."""
    best = {}
    for graphs in (False, True):
        best[graphs] = min(_ready_seconds(make, graphs) for _ in range(rounds))
    return round(max(0.0, best[True] - best[False]), 3)


def _ready_seconds(make: Any, graphs: bool) -> float:
    start = time.perf_counter()
    made = make(graphs)
    spent = time.perf_counter() - start
    del made
    gc.collect()
    return spent
