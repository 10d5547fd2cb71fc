"""Owns the tuning key: under which name a measurement is stored and looked up again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from kernelgen.core.errors import UsageError, quote

Phase = Literal["decode", "mixed"]

_SM = re.compile(r"cpu|sm_\d{2,3}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_BUCKET = re.compile(rf"({'|'.join(get_args(Phase))}):([1-9]\d{{0,8}})")


@dataclass(frozen=True)
class Bucket:
    """The phase and size that a plan is made for: decode counts requests, mixed counts tokens."""

    phase: str
    size: int

    def __str__(self) -> str:
        return f"{self.phase}:{self.size}"

    @staticmethod
    def parse(text: str) -> Bucket:
        """The inverse of `str`; `UsageError` for anything else."""
        found = _BUCKET.fullmatch(text)
        if found is None:
            raise UsageError(f"bucket {quote(text)}", allowed="decode:N or mixed:N with N ≥ 1")
        return Bucket(found[1], int(found[2]))


@dataclass(frozen=True)
class TuningKey:
    """Everything that decides which measurement fits. Made by `tuning_key` only."""

    sm: str
    device: str
    family: str
    variant: str
    bucket: Bucket


def tuning_key(sm: str, device: str, family: str, variant: str, bucket: Bucket | str) -> TuningKey:
    """The key of one kernel variant at one size: the sweep and the look-up both call this.

    `sm` is "sm_90" or "cpu", `variant` the family's canonical text of everything compiled in,
    `bucket` "decode:8" or its object. `UsageError` for names that could not be a file's path.
    """
    if _SM.fullmatch(sm) is None:
        raise UsageError(f"SM {quote(sm)}", allowed="cpu or sm_NN")
    for what, name in (("device", device), ("family", family)):
        if _NAME.fullmatch(name) is None:
            raise UsageError(f"{what} {quote(name)}", allowed="lower case, digits, - and _")
    if not variant or "\n" in variant:
        raise UsageError(f"variant {quote(variant)}", allowed="one line of text")
    place = Bucket.parse(str(bucket))
    return TuningKey(sm, device, family, variant, place)
