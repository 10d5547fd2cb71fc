"""Owns what a journal says of tiles that were chosen inside whole steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StepChoice:
    """One kernel of a whole step: the tile in use before and the one that was kept."""

    kernel: str
    bucket: str
    tried: int
    """other tiles that were replayed in its place"""
    before: str
    kept: str
    gain: float
    """share of the whole step that the kept tile saves; 0 where it is the one of before"""
    flag: str
    """why the decision does not count; empty where it does"""

    @property
    def is_new(self) -> bool:
        """Whether another tile was kept."""
        return self.kept != self.before


def step_choices(
    lines: Iterable[Mapping[str, Any]], names: Mapping[str, tuple[str, str]]
) -> tuple[StepChoice, ...]:
    """Decisions in order. `names`: group → kernel and size; a kernel that was decided twice counts
    as it was decided last.
    """
    found: dict[tuple[str, str], StepChoice] = {}
    for line in lines:
        if line["kind"] == "decided" and line["group"] in names:
            found[line["step"], line["group"]] = _choice(line, *names[line["group"]])
    return tuple(found.values())


def _choice(line: Mapping[str, Any], kernel: str, bucket: str) -> StepChoice:
    gains: Mapping[str, list[float]] = line.get("gains") or {}
    kept = gains.get(line["candidate"]) or [0.0]
    return StepChoice(
        kernel=kernel,
        bucket=bucket,
        tried=len(gains),
        before=str(line.get("before") or ""),
        kept=str(line["candidate"]),
        gain=sum(kept) / len(kept),
        flag=str(line.get("flag") or ""),
    )
