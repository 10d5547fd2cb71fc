"""Owns the clocks of a start: fresh processes to their first token, and what they did till then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelgen.bench.case import Case, prompts
from kernelgen.bench.children import python_child
from kernelgen.bench.series import Series

ROUNDS = 3
ROUNDS_FOR_ALL = 2
"""starts that capture the graphs of all decode sizes"""


@dataclass(frozen=True)
class StartClocks:
    """Seconds of starts of one kind, a new process each, files in the page cache; the smallest of
    each counts. `parts`: how the best of them, from the end of its imports, spent its time.
    """

    requests: int
    graphs: int
    process_to_first_token_s: Series
    imports_to_first_token_s: Series
    load_s: Series
    graphs_s: Series
    parts: Mapping[str, float]

    @classmethod
    def of(cls, requests: int, told: Sequence[Mapping[str, Any]]) -> StartClocks:
        """From what each process told; at least one."""
        process, imports = (
            f"first_token_seconds_from_{clock}" for clock in ("process_start", "imports_done")
        )
        best = min(told, key=lambda figures: float(figures[imports]))
        parts = [figures["start_seconds"] for figures in told]
        return cls(
            requests,
            graphs=int(best["graphs"]),
            process_to_first_token_s=Series.of([figures[process] for figures in told]),
            imports_to_first_token_s=Series.of([figures[imports] for figures in told]),
            load_s=Series.of([figures["load_seconds"] for figures in told]),
            graphs_s=Series.of([part.get("graphs", 0.0) for part in parts]),
            parts={name: round(float(s), 4) for name, s in best["start_seconds"].items()},
        )


@dataclass(frozen=True)
class StartFigures:
    """Starts for one request, and for as many as the largest decode plan holds.

    `load_gb_s`: bytes of the bound weights over the best time to load them. `peak_host_bytes`:
    most memory of a process, shared libraries included. `processes`: programs that any start
    ran; `triton_imported`: whether any imported Triton. Neither has a reason to happen.
    """

    prompt: int
    one: StartClocks
    all: StartClocks
    load_bytes: int
    load_gb_s: float
    peak_host_bytes: int
    processes: tuple[str, ...]
    triton_imported: bool


def measure_start(
    build: Path,
    options: Sequence[str],
    weights: str,
    case: Case,
    vocab: int,
    sizes: Sequence[int],
) -> StartFigures:
    """Starts processes with the case's prompt; `sizes` are the build's decode sizes.

    `options`: further ones of the runtime's `run`.
    """
    ids = ",".join(map(str, prompts(Case(1, case.prompt, case.tokens), vocab)[0]))
    command = [
        *("-m", "kernelgen.bench.started", "run", str(build), "--weights", weights, *options),
        *("--prompt-ids", ids, "--max-tokens", "2", "--ignore-eos", "--temperature", "0"),
        *("--max-model-len", str(case.length), "--bandwidth-seconds", "0", "--json"),
    ]
    most = ["--max-num-seqs", str(max(sizes))]
    one = [python_child(command) for _ in range(ROUNDS)]
    all_ = [python_child([*command, *most]) for _ in range(ROUNDS_FOR_ALL)]
    return figures_of(case.prompt, max(sizes), one, all_)


def figures_of(
    prompt: int, most: int, one: Sequence[Mapping[str, Any]], all_: Sequence[Mapping[str, Any]]
) -> StartFigures:
    """What the processes told, put together."""
    told = [*one, *all_]
    size, fastest = int(told[0]["load_bytes"]), min(float(t["load_seconds"]) for t in told)
    return StartFigures(
        prompt,
        StartClocks.of(1, one),
        StartClocks.of(most, all_),
        load_bytes=size,
        load_gb_s=float(f"{size / fastest / 1e9:.4g}"),
        peak_host_bytes=max(int(t["peak_host_bytes"]) for t in told),
        processes=tuple(dict.fromkeys(str(name) for t in told for name in t["processes"])),
        triton_imported=any(bool(t["triton_imported"]) for t in told),
    )
