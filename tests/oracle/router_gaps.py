"""How clearly the routers of a reference model have chosen: near ties would make a case a coin."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SMALLEST_GAP = 1e-4
"""between the last expert that is chosen and the first that is not; float32 ports differ by less"""


@contextmanager
def router_gaps(model: Any) -> Iterator[list[float]]:
    """The smallest gap of each call of each router while the context is open."""
    gaps: list[float] = []

    def note(_module: Any, _inputs: Any, output: Any) -> None:
        logits, _weights, chosen = output
        top, experts = chosen.shape[-1], logits.shape[-1]
        if top < experts:
            ordered = logits.sort(dim=-1, descending=True).values
            gaps.append(float((ordered[:, top - 1] - ordered[:, top]).min()))

    named = [m for name, m in model.named_modules() if name.endswith(".router")]
    hooks = [module.register_forward_hook(note) for module in named]
    try:
        yield gaps
    finally:
        for hook in hooks:
            hook.remove()


def smallest(gaps: list[float]) -> float:
    """Infinite for a model without routers."""
    return min(gaps, default=math.inf)
