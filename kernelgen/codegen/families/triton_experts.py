"""Owns what the GPU families of routed experts share: the problem as numbers, its roles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelgen.codegen.families.expert_roles import ExpertRoles, expert_roles
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.formats import WeightFormat
from kernelgen.ir.types import Sizes
from kernelgen.ops import ChooseExperts
from kernelgen.planner.cost import region_bytes, region_flops
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region


@dataclass(frozen=True)
class Experts:
    """Rows times chosen matrices, as numbers."""

    tokens: int
    experts: int
    top: int
    n: int
    k: int
    matrices: int
    sums: bool
    """whether a token's experts are added up in the kernel"""
    choices: int
    """experts that are chosen in the kernel itself, one after the other; 0: they are given"""
    beside: int
    """K of a plain product whose result meets the sum; 0: there is none"""
    weight_bits: int
    packed: bool
    math: str
    bytes: int
    flops: int

    @property
    def pairs(self) -> int:
        """Of a token and one of its experts."""
        return self.tokens * self.top

    @property
    def pair_bytes(self) -> int:
        """Weights that one pair asks for."""
        return self.n * self.k * self.matrices * self.weight_bits // 8


def experts_format(region: Region, roles: ExpertRoles) -> WeightFormat | None:
    """The format of the stacks; None where they are plain."""
    kind = region.value(roles.stacks[0]).type.dtype
    return kind if isinstance(kind, WeightFormat) else None


def experts_problem(region: Region, roles: ExpertRoles, sizes: Sizes) -> Experts:
    """The numbers of a matched region."""
    x, stack = (region.value(n).type for n in roles.anchors[0].inputs[:2])
    ids = region.value(roles.ids).type
    experts, n = stack.shape[:2]
    assert isinstance(experts, int) and isinstance(n, int)
    packed = experts_format(region, roles)
    narrow = x.dtype == BFLOAT16 and (packed is not None or stack.dtype == BFLOAT16)
    beside = region.value(roles.beside.inputs[0]).type.row_width if roles.beside else 0
    return Experts(
        tokens=sizes.tokens,
        experts=experts,
        top=ids.row_width,
        n=n,
        k=stack.row_width,
        matrices=len(roles.anchors),
        sums=roles.sum is not None,
        choices=ids.row_width if any(isinstance(r.op, ChooseExperts) for r in roles.route) else 0,
        beside=beside,
        weight_bits=stack.dtype.bits,
        packed=packed is not None,
        math="bfloat16" if narrow else "float32",
        bytes=region_bytes(region, sizes),
        flops=region_flops(region, sizes),
    )


def experts_roles(*, alone: bool) -> Callable[[Region, str], ExpertRoles | Refusal | None]:
    """Products with chosen experts; unless `alone`, the choice before them, the sum behind them
    and a plain product that meets it may belong to them.
    """

    def roles(region: Region, phase: str) -> ExpertRoles | Refusal | None:
        find = (lambda: expert_roles(region, sums=False)) if alone else (lambda: _all(region))
        return region.recall(("experts", alone), find)

    return roles


def _all(region: Region) -> ExpertRoles | Refusal | None:
    return expert_roles(region, sums=True, routes=True, beside=True)
