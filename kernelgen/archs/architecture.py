"""Owns what an architecture is: a predicate on configs and functions from config to weights."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelgen.archs.weight_rules import TensorRule, WeightRules, checkpoint_tensors
from kernelgen.core.dtypes import DType
from kernelgen.ir.graph import Graph
from kernelgen.spec.config import ConfigFile
from kernelgen.spec.model import ModelSpec

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class Architecture:
    """One folder of `archs/`, or one that another distribution brings.

    `package` is the folder's import name; beside the code it holds `tiny.json`, `models/*.json`,
    `reference.py` and `NOTES.md`.
    """

    name: str
    package: str
    matches: Callable[[Mapping[str, Any]], bool]
    read: Callable[[ConfigFile], ModelSpec]
    lower: Callable[[ModelSpec, DType], Graph]
    weights: Callable[[ModelSpec], WeightRules]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"architecture name {self.name!r} does not match {_NAME.pattern}")

    @property
    def folder(self) -> Path:
        """Where the architecture's files lie."""
        file = importlib.import_module(self.package).__file__
        assert file is not None
        return Path(file).parent

    def checkpoint(self, spec: ModelSpec, graph: Graph) -> tuple[TensorRule, ...]:
        """Every tensor that a checkpoint must hold and the parameter that it fills."""
        return checkpoint_tensors(self.weights(spec), graph)

    def ignored(self, spec: ModelSpec) -> tuple[str, ...]:
        """Regular expressions of checkpoint names that carry nothing."""
        return self.weights(spec).ignored

    def plain(self, spec: ModelSpec) -> tuple[str, ...]:
        """Regular expressions of modules that checkpoints store plainly, whatever is announced."""
        return self.weights(spec).plain

    def reference(self) -> ModuleType:
        """The plain model in torch; for tests and `verify` only."""
        return importlib.import_module(f"{self.package}.reference")


def class_matcher(class_name: str, model_type: str) -> Callable[[Mapping[str, Any]], bool]:
    """A predicate: `architectures` lists the class, or it is absent and `model_type` agrees."""

    def matches(config: Mapping[str, Any]) -> bool:
        classes = config.get("architectures")
        if isinstance(classes, list) and classes:
            return class_name in classes
        return config.get("model_type") == model_type

    return matches
