"""Owns the GPU family as planners see it: match by roles, price by table or by corrected model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kernelgen.codegen.families.triton_among import among_others_us
from kernelgen.codegen.families.triton_choice import Best, OtherFields
from kernelgen.codegen.families.triton_time import boundary
from kernelgen.core.errors import KernelgenError
from kernelgen.hw import parse_target
from kernelgen.hw.device import Device
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Match, Pass, Price, Refusal
from kernelgen.planner.network import Region
from kernelgen.planner.plan import COUNTERS, SCRATCH, Kernel
from kernelgen.planner.planner import plan_sizes
from kernelgen.planner.variant import variant_text
from kernelgen.tables import TUNED, Bucket, LookUp, Row, Tables, TuningKey, Verdict, tuning_key
from kernelgen.tables.fit import BOUNDARY
from kernelgen.tables.lookup import NO_DOUBT, Doubt

LEAST_BYTES = 64
"""scratch of a kernel that wants some at other sizes: its signature must not depend on the size"""
UNTUNED_US = 1e6
"""what a kernel without a measurement is said to cost where one is required: a plan has one only if
no plan can do without"""


MOST_DOUBT = 0.15
"""share of a modelled time that it may have to be better by than a measured one, at most"""


@dataclass(frozen=True)
class Quote:
    """What a family says about a match at given sizes."""

    best: Best[Any]
    bytes: int
    flops: int
    problem: Any
    scratch_bytes: int = 0
    counters: int = 0
    passes: tuple[Pass, ...] = ()
    notes: tuple[str, ...] = ()

    def us(self, device: Device) -> float:
        """What the model says of all launches, the boundary before the first included."""
        return device.boundary_us + self.best.timing.us + sum(p.us for p in self.passes)

    def parts(self, device: Device) -> dict[str, float]:
        """The same as what it is the sum of: a fit gives each part its scale."""
        timing = self.best.timing
        found = dict((*timing.hidden[:1], *timing.exposed, (BOUNDARY, device.boundary_us)))
        found["passes"] = sum(p.us for p in self.passes)
        return {part: us for part, us in found.items() if us > 0}


class Quoter(Protocol):
    """The quote of a family: for the model's best tile, or for the one that `choice` spells."""

    def __call__(
        self,
        region: Region,
        roles: Any,
        sizes: Sizes,
        device: Device,
        choice: Mapping[str, int] | None = None,
        /,
    ) -> Quote | Refusal:
        """`Refusal` where no tile is legal, or not this one."""


@dataclass(frozen=True)
class TritonFamily:
    """One Triton template: its source depends on the variant, the compiled code on the tile too."""

    name: str
    roles: Callable[[Region, str], Any]
    quote: Quoter
    tables: Tables
    source: Callable[[Kernel, Mapping[str, int]], str]
    """digest of the code that is generated for a kernel with a tile"""
    backend: str = "triton"
    require_tuned: bool = False
    varies: str = ""
    """see `Family.varies`"""

    def match(self, region: Region, phase: str) -> Match | Refusal | None:
        """The region as one kernel of this template. Weights lie as rows."""
        roles = self.roles(region, phase)
        if roles is None or isinstance(roles, Refusal):
            return roles
        text = region.recall("variant", lambda: variant_text(region))
        return Match(self, region, roles, text, phase=phase)

    def price(self, match: Match, sizes: Sizes, device: Device) -> Price | Refusal:
        """What a table measured, else the modelled time of the best tile as the device's fit
        corrects it; the boundary before the kernel included.
        """
        quote = self.quote(match.region, match.roles, sizes, device)
        if isinstance(quote, Refusal):
            return quote
        found = self._look_up(match, sizes, device)
        price = None
        if found.verdict in TUNED or (found.choice and not self.require_tuned):
            price = self._tuned(match, sizes, device, quote, found)
        price = price or self._modelled(quote, device, found)
        launches = 1 + len(price.passes)
        among = among_others_us(self.name, match.phase, launches, device)
        return replace(price, among_us=among)

    def key(self, match: Match, sizes: Sizes, device: Device) -> TuningKey:
        """Under which name a match at given sizes is measured and looked up."""
        bucket = Bucket(match.phase, self._size(match, sizes))
        return tuning_key(device.sm_name, device.name, self.name, match.variant, bucket)

    @staticmethod
    def _size(match: Match, sizes: Sizes) -> int:
        return sizes.rows if match.phase == "decode" else sizes.tokens

    def modelled(self, match: Match, sizes: Sizes, device: Device) -> dict[str, float]:
        """What the cost model alone says of its best tile, in parts; empty where none is legal."""
        quote = self.quote(match.region, match.roles, sizes, device)
        return {} if isinstance(quote, Refusal) else quote.parts(device)

    def _look_up(self, match: Match, sizes: Sizes, device: Device) -> LookUp:
        usual = plan_sizes(match.phase, self._size(match, sizes))
        if sizes.context != usual.context and match.region.with_trait(Trait.ATTENTION):
            reason = f"rows are measured with {usual.context} cache entries, not {sizes.context}"
            return LookUp(Verdict.MODELLED, reason)
        return self.tables.look_up(
            self.key(match, sizes, device), lambda row: self.unfit(match, sizes, device, row)
        )

    def _modelled(self, quote: Quote, device: Device, found: LookUp) -> Price:
        """The cost model, corrected by what was measured of other kernels."""
        fit = self.tables.fit(device.sm_name, device.name)
        us, doubt, told = quote.us(device), 0.0, list[str]()
        if fit is not None:
            parts, correction = quote.parts(device), fit.of(self.name)
            us, told = correction.apply(parts), [fit.told(self.name, parts)]
            doubt = us * min(correction.after.median, MOST_DOUBT)
        if found.verdict is not Verdict.MODELLED:
            told.append(found.reason)
        verdict = found.verdict
        if self.require_tuned:
            us, verdict = us + UNTUNED_US, Verdict.REFUSED
        timing = (*quote.best.timing.told(), boundary(device))
        return replace(_price(quote, device, us, verdict, (*timing, *told)), doubt_us=doubt)

    def _tuned(
        self, match: Match, sizes: Sizes, device: Device, modelled: Quote, found: LookUp
    ) -> Price | None:
        """A measured time with the measured tile, and what that tile needs. A time that is
        inherited is scaled by what the model says of both devices; one between different tiles is
        doubted as a modelled one is.
        """
        quote = self.quote(match.region, match.roles, sizes, device, found.choice)
        if isinstance(quote, Refusal):
            return None
        us = found.us
        if found.device != device.name:
            there = self._sibling(match, sizes, device, found)
            if there is None:
                return None
            us *= quote.us(device) / there
        word = "interpolated " if found.verdict is Verdict.INTERPOLATED else ""
        told = f"{word}{found.reason} (model: {modelled.us(device):.2f} µs)"
        price = _price(quote, device, us, found.verdict, (told,))
        doubted = found.verdict is Verdict.MODELLED
        return replace(price, doubt_us=us * MOST_DOUBT) if doubted else price

    def _sibling(self, match: Match, sizes: Sizes, device: Device, found: LookUp) -> float | None:
        """What the model says of an inherited tile on the device that was measured."""
        try:
            sibling = parse_target(f"{device.sm_name}:{found.device}")
        except KernelgenError as error:
            self.tables.note(f"{device.target} inherits from an unknown device: {error}")
            return None
        quote = self.quote(match.region, match.roles, sizes, sibling, found.choice)
        return None if isinstance(quote, Refusal) else quote.us(sibling)

    def unfit(self, match: Match, sizes: Sizes, device: Device, row: Row) -> Doubt:
        """Why a row cannot serve: its code has changed, or its tile is illegal at these sizes."""
        place = ("unfit", self.name, match.phase, sizes, row.source, device.refused_tiles)
        choice = (row.bucket, row.backend, *row.choice.items())
        return match.region.recall(
            (*place, device.target, choice), lambda: self._judge(match, sizes, device, row)
        )

    def _judge(self, match: Match, sizes: Sizes, device: Device, row: Row) -> Doubt:
        illegal = self._illegal(match, sizes, device, row)
        if isinstance(illegal, OtherFields):
            return Doubt(stale=True)
        own = plan_sizes(match.phase, row.key.bucket.size)
        own = own if sizes.row_capacity else own.capacity
        broken = illegal and self._illegal(match, own, device, row)
        modelled = self.quote(match.region, match.roles, sizes, device)
        assert isinstance(modelled, Quote)
        try:
            source = self.source(_kernel(match, modelled), row.choice)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            reason = illegal or f"no code for it: {error}"
            return Doubt(illegal=reason, broken=broken or reason)
        if source == row.source and not illegal:
            return NO_DOUBT
        return Doubt(source != row.source, illegal, broken)

    def _illegal(self, match: Match, sizes: Sizes, device: Device, row: Row) -> str:
        """Why the tile of a row cannot be taken at these sizes; empty where it can."""
        if row.backend != self.backend:
            return f"it is one of {row.backend}, and {self.name} is of {self.backend}"
        quote = self.quote(match.region, match.roles, sizes, device, row.choice)
        return quote.reason if isinstance(quote, Refusal) else ""


def _kernel(match: Match, quote: Quote) -> Kernel:
    """As far as its code depends on it: whether there is scratch, and whether counters."""
    extras = [SCRATCH] if quote.scratch_bytes else []
    extras += [COUNTERS] if quote.counters else []
    return Kernel(match.family.name, match, tuple(extras))


def _price(quote: Quote, device: Device, us: float, verdict: Verdict, told: Sequence[str]) -> Price:
    """The time of the whole, of which later passes keep the share that the model gives them."""
    share = us / quote.us(device)
    passes = tuple(replace(p, us=p.us * share) for p in quote.passes)
    return Price(
        bytes=quote.bytes + sum(p.bytes for p in quote.passes),
        flops=quote.flops,
        us=us,
        choice=quote.best.choice,
        verdict=verdict.value,
        scratch_bytes=quote.scratch_bytes,
        limits=(*told, *_details(quote, device)),
        passes=passes,
        counters=quote.counters,
    )


def _details(quote: Quote, device: Device) -> Sequence[str]:
    """The block, how many fit, and what is masked."""
    best = quote.best
    footprint = best.tile.footprint(quote.problem)
    block = (
        f"block of {footprint.threads} threads, about {footprint.registers} registers each,"
        f" {footprint.shared_bytes / 1024:.0f} KiB shared: {footprint.resident(device)} fit a"
        " multiprocessor"
    )
    masks = best.tile.masks(quote.problem) or ("no masks",)
    looked = best.looked_at
    tiles = [f"best of {best.legal} legal tiles, {looked - best.legal} illegal"] * (looked > 1)
    return (block, *quote.notes, *masks, *tiles)
