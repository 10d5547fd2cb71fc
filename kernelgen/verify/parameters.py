"""Owns reading a checkpoint's tensors as parameters, for references only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelgen.archs.weight_rules import TensorRule, assembled
from kernelgen.core.errors import UsageError, quote


def load_parameters(folder: Path, rules: Sequence[TensorRule]) -> dict[str, Any]:
    """Parameter name → tensor as stored; `UsageError` names a tensor that is missing or mis-shaped.

    All `*.safetensors` files of the folder are read; what no rule names is left out.
    """
    from safetensors import SafetensorError, safe_open

    wanted = {rule.name: rule for rule in rules}
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in set(file.keys()) & set(wanted):
                    found[name] = _checked(file, wanted[name], path)
        except SafetensorError as error:
            raise UsageError(f"is damaged: {quote(str(error))}", where=str(path)) from error
    missing = sorted(set(wanted) - set(found))
    if missing:
        shown = ", ".join(missing[:5])
        raise UsageError(f"{len(missing)} tensors are missing: {shown}", where=str(folder))
    return assembled(rules, found.get)


def _checked(file: Any, rule: TensorRule, path: Path) -> Any:
    shape = tuple(file.get_slice(rule.name).get_shape())
    if shape != rule.shape:
        raise UsageError(
            f"tensor {rule.name} has the shape {list(shape)}",
            where=str(path),
            allowed=str(list(rule.shape)),
        )
    return file.get_tensor(rule.name)
