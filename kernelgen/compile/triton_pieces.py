"""Owns what is compiled at once: a unit for one SM, and the digest its code is known by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.compile.triton_toolchain import TritonToolchain
from kernelgen.core.digest import digest_json

_RECIPE = 1  # to be raised when equal units are compiled in another way


@dataclass(frozen=True)
class Piece:
    """A unit for one SM; `key` is the digest of all that decides its code."""

    unit: TritonUnit
    sm: int
    key: str

    @property
    def label(self) -> str:
        """What a progress display calls it."""
        return f"{self.unit.name} sm_{self.sm}"


def pieces_of(
    units: Sequence[TritonUnit],
    sms: Sequence[int],
    modules: Mapping[str, str],
    tools: TritonToolchain,
) -> list[Piece]:
    """Each unit for each SM that it is meant for, by SM first."""
    shared = digest_json([_RECIPE, dict(sorted(modules.items())), tools.identity])
    pieces = [
        Piece(unit, sm, _key(unit, sm, shared))
        for sm in sms
        for unit in units
        if not unit.sms or sm in unit.sms
    ]
    if len({piece.label for piece in pieces}) != len(pieces):
        raise ValueError("two units of one SM have the same name")
    return pieces


def _key(unit: TritonUnit, sm: int, shared: str) -> str:
    """Digest of what decides the code of a unit on `sm`: not its name, nor the planner's words."""
    parts = [unit.text, unit.function, unit.signature, unit.constants, unit.options]
    numbers = [unit.num_warps, unit.num_stages, unit.pdl_on(sm), sm]
    return digest_json(["triton", shared, parts, numbers])
