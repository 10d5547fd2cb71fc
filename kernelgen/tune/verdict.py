"""Owns how far off a candidate is: what it has written as a share of what it may be off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernelgen.core.dtypes import BFLOAT16, FLOAT32
from kernelgen.ir.graph import Block
from kernelgen.ir.op import Trait
from kernelgen.ops.step import StepView
from kernelgen.verify.bounded import TENSOR_CORES, Bounded, rounded
from kernelgen.verify.bounds import evaluate_bounded

_MANTISSA = 9
"""halvings from the power of two above a bfloat16 to half of its last place"""

Tensor = Any


@dataclass(frozen=True)
class Verdict:
    """How far off a candidate is: `share` of the bound, above 1 is wrong; infinite where something
    was not written.
    """

    share: float
    text: str = ""


def evaluated(
    block: Block, outside: Mapping[str, Any], view: StepView
) -> tuple[dict[str, Bounded], dict[str, Bounded]]:
    """Every value with its bound; and narrow results that no node reads, before they are rounded.

    Rounding leaves steps of 0, 1 or 2 last places, and a kernel that is off by one of them has used
    all of its bound or none. What the steps are made from tells how near it was.
    """
    read = {name for node in block.nodes for name in node.inputs}
    made = {
        name
        for node in block.nodes
        if not node.op.has(Trait.STATE_WRITE | Trait.SAMPLE)
        for name in node.outputs
    }
    narrow = {n for n in made - read if block.value[n].type.dtype == BFLOAT16}
    wide = tuple(
        replace(v, type=replace(v.type, dtype=FLOAT32)) if v.name in narrow else v
        for v in block.values
    )
    found = evaluate_bounded(replace(block, values=wide), outside, view, TENSOR_CORES)
    unrounded = {name: found[name] for name in narrow}
    return found | {n: rounded(b.value, b.error) for n, b in unrounded.items()}, unrounded


def compared(
    what: str, found: Tensor, want: Tensor, bound: Tensor, unrounded: Bounded | None = None
) -> Verdict:
    """The element that uses most of its bound. `unrounded`: what `want` was before its rounding;
    it only ever tells how near a right element was to its bound.
    """
    import torch

    off = (found - want).abs()
    share = torch.where(off > 0, off / bound.clamp(min=1e-300), torch.zeros_like(off))
    if unrounded is not None:
        _, exponent = torch.frexp(found)
        half = torch.ldexp(torch.ones_like(found), exponent - _MANTISSA)
        outside = ((found - unrounded.value).abs() - half).clamp(min=0)
        finer = (outside / unrounded.error.clamp(min=1e-300)).clamp(max=1)
        share = torch.where(share <= 1, finer, share)
    share = torch.where(torch.isfinite(found), share, torch.full_like(off, float("inf")))
    worst = float(share.max()) if share.numel() else 0.0
    return Verdict(worst, f"{what}: {float(off.nan_to_num(float('inf')).max()):.3g} off")
