"""Owns the row: one measured choice of one kernel variant at one size, with where it came from."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kernelgen.core.errors import UsageError, quote
from kernelgen.tables.key import TuningKey, tuning_key

SCHEMA = 2
BACKENDS = ("cpp", "triton", "cute", "cutlass", "library")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\dZ)?")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Clocks:
    """The lowest and highest clocks seen while samples were taken, in MHz."""

    sm_min: int
    sm_max: int
    memory_min: int
    memory_max: int

    def __post_init__(self) -> None:
        for what, low, high in (
            ("sm", self.sm_min, self.sm_max),
            ("memory", self.memory_min, self.memory_max),
        ):
            if not 0 < low <= high:
                raise UsageError(f"{what} clocks {low} to {high} MHz", allowed="0 < min ≤ max")


@dataclass(frozen=True)
class Row:
    """One line of a table; the spelling of each field is in `autotune_configs/SCHEMA.json`.

    Fields that may be None are facts that a sweep did not record: nobody fills them in later.
    """

    schema: Literal[2]
    sm: str
    device: str
    family: str
    variant: str
    bucket: str
    backend: str
    choice: Mapping[str, int]
    """tile parameters that were fastest"""
    us: float
    """median time of one link of a captured chain of this kernel with dependent launch, as in a
    step: the boundary before it included; weights cold, rotated beyond the L2 cache"""
    us_p10: float | None
    us_p90: float | None
    samples: int
    l2: Literal["cold", "warm"]
    """where the weights were: "cold" is memory"""
    share_of_ceiling: float | None
    """of what the device reaches at best on this kernel's bytes or operations: 0.9 is near"""
    error_share: float | None
    """largest error against the reference as a share of its bound: above 1 is wrong"""
    bytes: int
    flops: int
    source: str
    """digest of the generated code (`source_digest`): another one makes the row stale"""
    toolchain: Mapping[str, str]
    """versions by tool: triton, ptxas, torch"""
    device_label: str | None
    """how the driver spells the device"""
    driver: str | None
    clocks: Clocks | None
    date: str
    """UTC, "2026-11-30" or "2026-11-30T12:00:00Z": of two rows with one key the newer counts"""
    provenance: str
    """name of the sweep in PROVENANCE.md"""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise UsageError(f"backend {quote(self.backend)}", allowed=", ".join(BACKENDS))
        if not 0 < self.us < math.inf:
            raise UsageError(f"us is {self.us}", allowed="above 0")
        if not (self.us_p10 or self.us) <= self.us <= (self.us_p90 or self.us):
            spread = f"us is {self.us}, us_p10 {self.us_p10}, us_p90 {self.us_p90}"
            raise UsageError(spread, allowed="us_p10 ≤ us ≤ us_p90")
        if self.bytes < 0 or self.flops < 0 or self.samples < 1:
            raise UsageError("bytes, flops or samples", allowed="bytes ≥ 0, flops ≥ 0, samples ≥ 1")
        if self.error_share is not None and not 0 <= self.error_share <= 1:
            raise UsageError(
                f"error_share is {self.error_share}", allowed="0 to 1: within its bound"
            )
        if self.share_of_ceiling is not None and not self.share_of_ceiling > 0:
            raise UsageError(f"share_of_ceiling is {self.share_of_ceiling}", allowed="above 0")
        if _DATE.fullmatch(self.date) is None:
            raise UsageError(f"date {quote(self.date)}", allowed="2026-11-30[T12:00:00Z]")
        if _DIGEST.fullmatch(self.source) is None:
            raise UsageError(f"source {quote(self.source)}", allowed="64 hexadecimal digits")
        _ = self.key

    @cached_property
    def key(self) -> TuningKey:
        """What this row answers."""
        return tuning_key(self.sm, self.device, self.family, self.variant, self.bucket)

    @cached_property
    def order(self) -> tuple[str, str, str, str, str, int]:
        """Where the row stands in its file: by variant, then phase, then size."""
        key = self.key
        bucket = key.bucket
        return (key.sm, key.device, key.family, key.variant, bucket.phase, bucket.size)
