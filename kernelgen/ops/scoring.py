"""Owns the scores of router logits, and the order in which experts are preferred."""

from __future__ import annotations

from typing import Any

from kernelgen.spec.experts import Scoring

NO_DIVISION_BY_ZERO = 1e-20
"""added to a sum of scores before they are divided by it"""


def scores(scoring: str, logits: Any) -> Any:
    """Softmax over the row, sigmoid, or the root of softplus, in the precision of the logits."""
    import torch

    if scoring == Scoring.SOFTMAX.value:
        return torch.softmax(logits, dim=-1)
    if scoring == Scoring.SIGMOID.value:
        return torch.sigmoid(logits)
    return torch.sqrt(torch.nn.functional.softplus(logits))


def known_scoring(scoring: str) -> None:
    """ValueError unless it is one of `Scoring`."""
    if scoring not in {s.value for s in Scoring}:
        known = ", ".join(s.value for s in Scoring)
        raise ValueError(f"scoring {scoring!r} is not one of {known}")


def best_first(values: Any, count: int) -> Any:
    """Numbers of the `count` largest of each row, largest first, of equal ones the lower first."""
    import torch

    return torch.argsort(-values, dim=-1, stable=True)[..., :count]


def has_nan(values: Any) -> Any:
    """`[rows, 1]`: whether a row holds something that is no number."""
    return values.isnan().any(-1, keepdim=True)
