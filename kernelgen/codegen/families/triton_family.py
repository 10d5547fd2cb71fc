"""Owns the GPU family as planners see it: match by roles, price by model or by table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelgen.codegen.families.triton_choice import Best
from kernelgen.codegen.families.triton_time import boundary
from kernelgen.hw.device import Device
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Match, Pass, Price, Refusal
from kernelgen.planner.network import Region
from kernelgen.planner.variant import variant_text
from kernelgen.tables import Bucket, Tables, Verdict, tuning_key

LEAST_BYTES = 64
"""scratch of a kernel that wants some at other sizes: its signature must not depend on the size"""


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


@dataclass(frozen=True)
class TritonFamily:
    """One Triton template: its source depends on the variant, the compiled code on the tile too."""

    name: str
    roles: Callable[[Region, str], Any]
    quote: Callable[[Region, Any, Sizes, Device], Quote | Refusal]
    tables: Tables
    backend: str = "triton"

    def match(self, region: Region, phase: str) -> Match | Refusal | None:
        """The region as one kernel of this template. Weights lie as rows."""
        roles = self.roles(region, phase)
        if roles is None or isinstance(roles, Refusal):
            return roles
        text = region.recall("variant", lambda: variant_text(region))
        return Match(self, region, roles, text, phase=phase)

    def price(self, match: Match, sizes: Sizes, device: Device) -> Price | Refusal:
        """The modelled time of the best tile, or what a table measured; the boundary before it
        included.
        """
        quote = self.quote(match.region, match.roles, sizes, device)
        if isinstance(quote, Refusal):
            return quote
        later = sum(p.us for p in quote.passes)
        price = Price(
            bytes=quote.bytes + sum(p.bytes for p in quote.passes),
            flops=quote.flops,
            us=device.boundary_us + quote.best.timing.us + later,
            choice=quote.best.choice,
            verdict=Verdict.MODELLED.value,
            scratch_bytes=quote.scratch_bytes,
            limits=_limits(quote, device),
            passes=quote.passes,
            counters=quote.counters,
        )
        return self._measured(match, sizes, device, price) or price

    def _measured(
        self, match: Match, sizes: Sizes, device: Device, modelled: Price
    ) -> Price | None:
        """A table's row, if there is one. Rows hold the kernel alone, its cold start included."""
        size = sizes.rows if match.phase == "decode" else sizes.tokens
        bucket = Bucket(match.phase, size)
        key = tuning_key(device.sm_name, device.name, self.name, match.variant, bucket)
        row = self.tables.look_up(key).row
        if row is None:
            return None
        return Price(
            bytes=modelled.bytes,
            flops=modelled.flops,
            us=max(row.us - device.launch_us, 0.0) + device.boundary_us,
            choice=dict(row.choice),
            verdict=Verdict.EXACT.value,
            scratch_bytes=modelled.scratch_bytes,
            limits=(f"measured {row.us:g} µs alone (model: {modelled.us:.2f} µs in the step)",),
            passes=modelled.passes,
            counters=modelled.counters,
        )


def _limits(quote: Quote, device: Device) -> Sequence[str]:
    """What bounds the kernel, its grid, and what is masked."""
    best = quote.best
    footprint = best.tile.footprint(quote.problem)
    block = (
        f"block of {footprint.threads} threads, about {footprint.registers} registers each,"
        f" {footprint.shared_bytes / 1024:.0f} KiB shared: {footprint.resident(device)} fit a"
        " multiprocessor"
    )
    masks = best.tile.masks(quote.problem) or ("no masks",)
    tiles = f"best of {best.legal} legal tiles, {best.looked_at - best.legal} illegal"
    return (*best.timing.told(), boundary(device), block, *quote.notes, *masks, tiles)
