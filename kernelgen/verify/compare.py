"""Owns comparing what a kernel wrote with what it should have written."""

from __future__ import annotations

from kernelgen.ops.step import StepView
from kernelgen.verify.bounded import Bounded
from kernelgen.verify.checks import Check, faults
from kernelgen.verify.sampling import acceptable
from kernelgen.verify.scenario import Scenario
from kernelgen.verify.tensors import Tensor


def compare(subject: str, where: str, found: Tensor, want: Bounded) -> Check:
    """Every element within its own bound; the row shows the one that uses most of it."""
    import torch

    numbers = found.double()
    wild = ~torch.isfinite(numbers) & torch.isfinite(want.value)
    if wild.any():
        at = _index(wild, int(wild.flatten().int().argmax()))
        text = f"{where}: {int(wild.sum())} of {wild.numel()} are not finite, first at {at}"
        return faults(subject, "values", 1, int(wild.sum()), text)
    off = (numbers - want.value).abs()
    if not off.numel():
        return Check(subject, "values", 1, 0.0, 0.0, True, where)
    # Where nothing may differ, any difference is worse than what has a bound.
    used = torch.where(off > 0, off / want.error, torch.zeros_like(off))
    place = int(used.argmax())
    error, bound = float(off.flatten()[place]), float(want.error.flatten()[place])
    wrong = int((off > want.error).sum())
    text = f"{where} at {_index(off, place)}"
    if wrong:
        text += f"; {wrong} of {off.numel()} are outside"
    elif not error:
        bound = float(want.error.max())
    return Check(subject, "values", 1, error, bound, wrong == 0, text)


def compare_choices(
    subject: str, where: str, found: Tensor, logits: Bounded, view: StepView, scenario: Scenario
) -> Check:
    """Chosen ids of the logit rows that sample, −1 at the others."""
    wrong = []
    for b, owner in enumerate(scenario.logit_rows):
        right = {-1} if owner < 0 else acceptable(logits.value[b], logits.error[b], view, b)
        if int(found[b]) not in right:
            wrong.append(f"row {b}: {int(found[b])}, not {sorted(right)[:3]}")
    return faults(subject, "values", 1, len(wrong), f"{where}: wrong choices {wrong[:2]}")


def different(a: Tensor, b: Tensor) -> int:
    """Elements of two tensors whose bits differ."""
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    left, right = (t.contiguous().view(kinds[t.element_size()]) for t in (a, b))
    return 0 if torch.equal(left, right) else int((left != right).sum())


def _index(like: Tensor, place: int) -> list[int]:
    import torch

    found = torch.unravel_index(torch.tensor(place), like.shape)
    return [int(i) for i in found]
