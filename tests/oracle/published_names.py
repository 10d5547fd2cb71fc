"""Owns the names and shapes of published checkpoints where the framework's modules have others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Tensors = Mapping[str, Any]


def _kimi_linear(tensors: Tensors) -> dict[str, Any]:
    """One convolution a projection, one matrix an expert; experts under a prefix of their own."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        name = name.replace(".forget_gate.", ".")
        if re.search(r"\.mlp\.(gate\.|experts\.|shared_experts\.)", name):
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if name.endswith(".conv1d.weight"):
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                found[name.replace(".conv1d.", f".{part}_conv1d.")] = rows
        elif name.endswith(".experts.gate_up_proj"):
            for e, both in enumerate(tensor):
                one = name.replace("gate_up_proj", str(e))
                found[f"{one}.w1.weight"], found[f"{one}.w3.weight"] = both.chunk(2)
        elif name.endswith(".experts.down_proj"):
            for e, matrix in enumerate(tensor):
                found[f"{name.replace('down_proj', str(e))}.w2.weight"] = matrix
        else:
            found[name] = tensor
    return found


PUBLISHED: Mapping[str, Callable[[Tensors], dict[str, Any]]] = {"kimi_linear": _kimi_linear}
"""by `model_type`; others have the names of their modules"""
