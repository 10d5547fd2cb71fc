"""Owns how far a whole model's logits may lie from recorded ones: fixed rules, nothing measured."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from kernelgen.verify.model_cases import Case

TINY_PARAMETERS = 10_000_000
"""up to here a model counts as tiny"""
ROUNDINGS_A_LAYER = 10
"""bfloat16 results on the way through a decoder layer: two norms, q, k, v, scores' inputs, mix,
gate, up, down, two sums; some of them in parallel"""
DEVIATIONS = 6.0
"""a largest error among a million logits lies five standard deviations out"""


@dataclass(frozen=True)
class LogitBound:
    """The largest allowed difference of one logit, and the rule behind it."""

    value: float
    rule: str


def logit_bound(case: Case, dtype: str, parameters: int, layers: int) -> LogitBound:
    """The bound for one recorded case.

    float32: 1e-4 × max(1, largest |logit|) for tiny models, 5e-3 for others. bfloat16: twice what
    the reference's own bfloat16 run is off its float32 run, where it was recorded (two independent
    runs of that error differ by √2 of it, and it is a largest value). Otherwise: n = 10·layers + 4
    roundings, each of standard deviation 2⁻⁹/√3 of the value, add up to √n of one; six of those
    deviations, relative to the root mean square of the logits, and never less than 2⁻⁸ of the
    largest logit.
    """
    largest = float(np.abs(case.prefill_logits).max())
    if dtype == "float32":
        if parameters > TINY_PARAMETERS:
            return LogitBound(5e-3, "5e-3")
        return LogitBound(1e-4 * max(1.0, largest), "1e-4 of the largest logit, at least 1e-4")
    if case.narrow is not None:
        pairs = zip((case.prefill_logits, case.decode_logits), case.narrow, strict=True)
        off = max(float(np.abs(a - b).max()) for a, b in pairs if a.size and a.shape == b.shape)
        return LogitBound(2 * off, "twice the error of the reference's own bfloat16 run")
    spread = float(np.sqrt(np.mean(np.square(case.prefill_logits, dtype=np.float64))))
    count = ROUNDINGS_A_LAYER * layers + 4
    walk = DEVIATIONS * 2.0**-9 / sqrt(3) * sqrt(count) * spread
    rule = f"{DEVIATIONS:g} deviations of {count} bfloat16 roundings"
    return LogitBound(max(walk, 2.0**-8 * largest), rule)
