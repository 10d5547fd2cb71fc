"""Owns the other engines that a case can be given to, each in a process of its own."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kernelgen.bench.case import Case, prompts
from kernelgen.bench.children import python_child
from kernelgen.bench.report import EngineFigures
from kernelgen.bench.series import Series
from kernelgen.core.errors import KernelgenError

SECONDS = 900
"""longest life of an engine: some compile for minutes"""


@dataclass(frozen=True)
class Adapter:
    """An engine: the package it needs, and the module that runs cases read from stdin.

    The module reads one JSON object, `{"config", "dtype", "device", "rounds", "cases": [{"prompts",
    "tokens"}]}`, and prints `{"version", "cases": [{"step_seconds", "prefill_seconds"}]}`, a value
    a round in each list; or `{"problem"}` in the place of a case's figures. Weights are made up.
    """

    name: str
    package: str
    module: str


ADAPTERS = MappingProxyType(
    {
        adapter.name: adapter
        for adapter in (
            Adapter("transformers", "transformers", "kernelgen.bench.peer_transformers"),
            Adapter("vllm", "vllm", "kernelgen.bench.peer_vllm"),
        )
    }
)


def measure_engine(
    name: str,
    config: Mapping[str, Any] | None,
    dtype: str,
    device: str,
    cases: Sequence[Case],
    rounds: int,
) -> list[EngineFigures]:
    """Figures of one engine for every case; where it fails, why."""
    adapter, every = ADAPTERS[name], len(cases)
    if importlib.util.find_spec(adapter.package) is None:
        return [EngineFigures(name, problem=f"{adapter.package} is not installed")] * every
    if config is None:
        problem = "the build does not carry its config.json: bench the model by name"
        return [EngineFigures(name, problem=problem)] * every
    vocab = int(config.get("vocab_size", 1000))
    spec = {
        "config": dict(config),
        "dtype": dtype,
        "device": device,
        "rounds": rounds,
        "cases": [{"prompts": prompts(case, vocab), "tokens": case.tokens} for case in cases],
    }
    try:
        told = python_child(["-m", adapter.module], given=json.dumps(spec), seconds=SECONDS)
    except KernelgenError as error:
        return [EngineFigures(name, problem=str(error))] * every
    return [_figures(name, str(told["version"]), figures) for figures in told["cases"]]


def _figures(name: str, version: str, told: Mapping[str, Any]) -> EngineFigures:
    if "problem" in told:
        return EngineFigures(name, version, problem=str(told["problem"])[:300])
    return EngineFigures(
        name,
        version,
        step_us=Series.of(told["step_seconds"], 1e6),
        prefill_ms=Series.of(told["prefill_seconds"], 1e3),
    )
