"""Owns the list of built-in models with their sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelgen.archs.registry import builtin_config, builtin_models, find_architecture
from kernelgen.core.dtypes import BFLOAT16


@dataclass(frozen=True)
class BuiltinModel:
    """One built-in config in numbers; `parameters` counts what a checkpoint stores."""

    name: str
    architecture: str
    layers: int
    hidden: int
    vocab: int
    max_positions: int
    parameters: int


def builtin_list() -> tuple[BuiltinModel, ...]:
    """Every built-in model, by name."""
    return tuple(_described(name) for name in builtin_models())


def _described(name: str) -> BuiltinModel:
    config = builtin_config(name)
    architecture = find_architecture(config)
    spec = architecture.read(config)
    tensors = architecture.checkpoint(spec, architecture.lower(spec, BFLOAT16))
    return BuiltinModel(
        name=name,
        architecture=spec.architecture,
        layers=len(spec.layers),
        hidden=spec.hidden,
        vocab=spec.vocab,
        max_positions=spec.max_positions,
        parameters=sum(math.prod(shape) for shape in {t.name: t.shape for t in tensors}.values()),
    )
