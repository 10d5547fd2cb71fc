"""Owns how far a whole model's logits may lie from recorded ones: fixed rules, nothing measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelgen.core.errors import UsageError
from kernelgen.verify.model_cases import Case

TINY_PARAMETERS = 10_000_000
"""up to here a model counts as tiny"""


@dataclass(frozen=True)
class LogitBound:
    """The largest allowed difference of one logit, and the rule behind it."""

    value: float
    rule: str


def logit_bound(case: Case, dtype: str, parameters: int) -> LogitBound:
    """The bound for one recorded case.

    float32: 1e-4 × max(1, largest |logit|) for tiny models, 5e-3 for others. bfloat16: twice what
    a bfloat16 run that is none of ours is off the float32 logits. Two such runs round at other
    places or in another order: their errors are of one size and differ by √2 of it. That run is the
    reference's own where it was recorded, else the ops' references with every bfloat16 result
    rounded. A case with neither is a `UsageError`.
    """
    if dtype == "float32":
        if parameters > TINY_PARAMETERS:
            return LogitBound(5e-3, "5e-3")
        largest = float(np.abs(case.prefill_logits).max())
        return LogitBound(1e-4 * max(1.0, largest), "1e-4 of the largest logit, at least 1e-4")
    if case.narrow is None:
        raise UsageError(f"case {case.name} has no bfloat16 run to take its bound from")
    wide = np.concatenate([case.prefill_logits, case.decode_logits])
    narrow = np.concatenate(case.narrow)
    count = min(len(wide), len(narrow))
    off = float(np.abs(wide[:count] - narrow[:count]).max())
    return LogitBound(2 * off, f"twice the error of {case.narrow_source}")
