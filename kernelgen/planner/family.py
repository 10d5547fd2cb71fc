"""Owns what a planner asks of kernel families: can you cover these ops, how, at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.planner.network import Region


@dataclass(frozen=True)
class Refusal:
    """Why a family cannot take a region that it otherwise would; the text ends up in `explain`."""

    reason: str
    barrier: bool = False
    """whether what stands between the ops is that all parts of one must be done before the other
    starts"""


@dataclass(frozen=True)
class Match:
    """A region as one kernel of a family: the roles that its ops play there."""

    family: Family
    region: Region
    roles: Any
    """what the family's own matcher found; only the family and its code generator look inside"""
    variant: str
    """canonical text of everything that is compiled in: equal texts are one kernel"""
    layouts: Mapping[str, str] = field(default_factory=dict)
    """weight value → layout that this kernel demands; weights not named here are read in any"""
    phase: str = "decode"


@dataclass(frozen=True)
class Pass:
    """A further launch that belongs to the same kernel: it merges what the first one left in
    scratch.
    """

    name: str
    bytes: int
    us: float
    why: str


@dataclass(frozen=True)
class Price:
    """What one use of a kernel costs at given sizes, all of its passes included."""

    bytes: int
    flops: int
    us: float
    choice: Mapping[str, int]
    """tile parameters: with the variant they decide the compiled code"""
    verdict: str
    """how far the time can be trusted: exact, interpolated, inherited, modelled"""
    scratch_bytes: int = 0
    limits: Sequence[str] = ()
    """what bounds it, in words, for `explain`"""
    passes: Sequence[Pass] = ()
    """launches after the first"""
    counters: int = 0
    """int32 words, zero before the launch and left zero by it, by which its blocks find the last
    one"""
    doubt_us: float = 0.0
    """by how much a modelled time has to be better than a measured one to count as better: the
    least of many estimates is too low more often than too high"""
    among_us: float = 0.0
    """what it costs a step beyond `us`, which is the time of a kernel among its like"""

    @property
    def cost_us(self) -> float:
        """What a search adds up."""
        return self.us + self.doubt_us + self.among_us


class Family(Protocol):
    """One kind of kernel on one backend. Implementations live in `codegen/families`."""

    @property
    def name(self) -> str:
        """`linear`, `attention`, `rows` …"""

    @property
    def backend(self) -> str:
        """`cpp` or `triton`"""

    @property
    def varies(self) -> str:
        """Why the order in which its kernels add up depends on the size of a step, in words; empty
        where it does not. Batch-invariant plans have none that varies.
        """

    def match(self, region: Region, phase: str) -> Match | Refusal | None:
        """The region as one kernel; a reason why not; or None when it is not this family's kind.

        Legal regions are closed under growth: each can be reached by adding one node at a time
        through legal regions of some family.
        """

    def price(self, match: Match, sizes: Sizes, device: Device) -> Price | Refusal:
        """Cost at given sizes, or the limit that makes it impossible there."""


Catalogue = Sequence[Family]
