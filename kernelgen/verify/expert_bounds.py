"""Owns how far routed experts may be off: products of chosen matrices, weights and their sum.

A choice is right or wrong and has no bound: numbers that are compared come to it exactly, or a test
has made sure that none are close. The logarithm of every score moves by at most as much as its
logit does, so a weight, which is a score over a sum of scores, moves by at most twice that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelgen.ops import ExpertLinear, SumExperts, WeighExperts
from kernelgen.ops.step import StepView
from kernelgen.verify.bounded import LIBRARY, NARROW, TINY, Bounded, U, summed


def expert_product_error(
    op: ExpertLinear, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView
) -> Sequence[Any]:
    """A sum of K products, and what the rows were off."""
    x, stack, ids = inputs
    size = stack.value.abs()
    (terms,) = op.reference([x.value.abs(), size, ids.value], view)
    (moved,) = op.reference([x.error, size, ids.value], view)
    return [summed(stack.value.shape[-1]) * terms + moved + TINY]


def scaled_weights_rounded(op: ExpertLinear, inputs: Sequence[Bounded], view: StepView) -> Any:
    """What it may cost to round each scaled weight once, see `bounds`."""
    import torch

    x, stack, ids = inputs[0].value, inputs[1].value, inputs[2].value
    (squares,) = op.reference([x.square(), stack.square(), ids], view)
    (sizes,) = op.reference([x.abs(), stack.abs(), ids], view)
    return torch.minimum(3.5 * NARROW * squares.sqrt(), NARROW * sizes)


def weights_error(
    op: WeighExperts, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView
) -> Sequence[Any]:
    """Twice the error of the worst logit; differences of logits, scores, their sum, a quotient."""
    logits = inputs[0]
    largest = logits.value.abs().amax(-1, keepdim=True)
    moved = 2 * logits.error.amax(-1, keepdim=True) + 4 * U * largest
    return [values[0].abs() * (moved.expm1() + 3 * LIBRARY + summed(logits.value.shape[-1])) + TINY]


def expert_sum_error(
    op: SumExperts, inputs: Sequence[Bounded], values: Sequence[Any], view: StepView
) -> Sequence[Any]:
    """Products of two numbers that may be off, one for each expert."""
    y, weights = inputs
    share, off = weights.value.abs()[:, :, None], weights.error[:, :, None]
    terms = y.value.abs() * share
    moved = y.error * share + y.value.abs() * off + y.error * off
    return [(moved + summed(terms.shape[1]) * terms).sum(1) + TINY]
