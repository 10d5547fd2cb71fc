"""Owns the contexts that one plan of decode attention serves, besides the one it is planned for."""

from __future__ import annotations

from typing import Any

from kernelgen.codegen.families.triton_decode import DecodeProblem, DecodeTile, decode_problem
from kernelgen.codegen.families.triton_family import TritonFamily
from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.planner.caches import PAGE_TOKENS
from kernelgen.planner.family import Match

SHARES = (1 / 8, 8)
"""of the planned context: as the family itself ranks tiles by its model"""


def contexts_of(match: Match, sizes: Sizes, max_pages: int) -> tuple[int, ...]:
    """Contexts besides the planned one at which candidates are measured; none for other kernels,
    and none where a window decides how much is read.
    """
    family = match.family
    assert isinstance(family, TritonFamily)
    if family.name != "attention_decode":
        return ()
    if decode_problem(match.region, match.roles, sizes).window:
        return ()
    asked = [min(max(1, round(sizes.context * s)), max_pages * PAGE_TOKENS) for s in SHARES]
    return tuple(c for c in asked if c != sizes.context)


def elsewhere_us(tile: Any, problem: Any, device: Device) -> float:
    """What the model says of the other contexts, each in proportion to what is read there."""
    if not isinstance(tile, DecodeTile):
        return 0.0
    assert isinstance(problem, DecodeProblem)
    if problem.window:
        return 0.0
    return sum(tile.time(problem.reading(s), device).us / s for s in SHARES)
