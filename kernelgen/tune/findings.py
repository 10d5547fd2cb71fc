"""Owns what one attempt at a group has found: who is right, who is fastest, what is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelgen.core.jsonio import to_json
from kernelgen.tune.bundle import Bundle, Candidate, Group
from kernelgen.tune.measurer import Canary, Machine
from kernelgen.tune.rows import ceiling_us, quantile, row_json, row_of

QUIET = 0.03
"""how far a canary may lie from the settled ceiling before samples count as disturbed"""
SPREAD = 0.15
"""the same for the samples of one candidate among themselves"""
_FINALISTS = 3
_MOST_FINALISTS = 8
_CLOSE = 1.05
"""a candidate within so much of the coarsely fastest is a finalist too: few samples cannot tell"""
_EVEN = 1.01
"""medians within so much of the fastest are even: another run may order them otherwise"""
_NEARLY = 16.0
"""bounds that a candidate may be off for its time to be of interest"""


def is_quiet(canary: Canary, ceiling: float) -> bool:
    """Whether nobody else uses the device, as far as a copy can tell."""
    return abs(canary.gb_s / ceiling - 1) <= QUIET


@dataclass(frozen=True)
class Found:
    """What one attempt at a group has seen."""

    machine: Machine
    canaries: tuple[Canary, ...]
    ceiling: float
    """GB/s of a canary on the settled device"""
    coarse: Mapping[str, Mapping[str, Any]]
    fine: Mapping[str, Mapping[str, Any]]
    """lines of the journal by candidate; those of finalists"""

    @property
    def quiet(self) -> bool:
        """Whether all canaries lie near the settled ceiling, and the samples near each other."""
        return all(is_quiet(c, self.ceiling) for c in self.canaries) and self.spread <= SPREAD

    @property
    def spread(self) -> float:
        """Of the samples of the finalist that is fastest: from the first decile to the ninth."""
        fastest = min((sorted(line["us"]) for line in self.fine.values()), default=[])
        if not fastest:
            return 0.0
        return quantile(fastest, 0.9) / quantile(fastest, 0.1) - 1

    @property
    def why(self) -> str:
        """What was disturbed, in words."""
        seen = ", ".join(f"{c.gb_s:.0f}" for c in self.canaries)
        if not all(is_quiet(c, self.ceiling) for c in self.canaries):
            return f"copies at {seen} GB/s where {self.ceiling:.0f} are settled"
        return f"samples spread by {self.spread:.0%}"

    def best(self, group: Group) -> tuple[Candidate, float] | None:
        """The right candidate that is fastest over all contexts, with its time at the planned one;
        of those that are even the one in use, else the model's first.
        """
        ranked = [
            (round(group.rank_us(self._median(c.id), self._elsewhere(c.id)), 3), c)
            for c in group.candidates
            if c.id in self.fine and not self.coarse[c.id]["bad"]
        ]
        if not ranked:
            return None
        fastest = min(us for us, _ in ranked)
        even = [c for us, c in ranked if us <= fastest * _EVEN]
        found = next((c for c in even if dict(c.choice) == dict(group.before)), even[0])
        return found, round(self._median(found.id), 3)

    def us(self, choice: Mapping[str, int]) -> float | None:
        """The median time of a choice, right or wrong; None where it was not measured finely."""
        name = Candidate(choice, (), 0, 0, "", 0.0, "").id
        return round(self._median(name), 3) if name in self.fine else None

    def samples(self, candidate: Candidate) -> Sequence[float]:
        """Of a finalist, at the planned context."""
        return list(self.fine[candidate.id]["us"])

    def _median(self, name: str) -> float:
        return quantile(sorted(self.fine[name]["us"]), 0.5)

    def _elsewhere(self, name: str) -> Sequence[float | None]:
        return tuple(self.fine[name].get("elsewhere", ()))


def latest(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The last word of a journal on something."""
    return lines[-1] if lines else None


def finalists(group: Group, coarse: Mapping[str, Mapping[str, Any]]) -> list[Candidate]:
    """The fastest right candidates, and what is used with and without tables."""

    def rank(candidate: Candidate) -> float:
        line = coarse[candidate.id]
        return group.rank_us(min(line["us"]), line.get("elsewhere", ()))

    timed = sorted((c for c in group.candidates if coarse[c.id]["us"]), key=rank)
    right = [c for c in timed if not coarse[c.id]["bad"]]
    # Where all are a little wrong the bound may be: their times are kept, and none is shipped.
    able = right or [c for c in timed if coarse[c.id]["share"] <= _NEARLY]
    close = [c for c in able if rank(c) <= rank(able[0]) * _CLOSE]
    first = able[: max(_FINALISTS, min(len(close), _MOST_FINALISTS))]
    also = [c for c in right if c.why == "model's best" or dict(c.choice) == dict(group.before)]
    return [c for c in group.candidates if c in first or c in also]


def group_line(
    bundle: Bundle, group: Group, found: Found | None, flag: str, date: str
) -> dict[str, Any]:
    """A group's line: its row if there is one, what it was compared with, and what was pruned."""
    best = found.best(group) if found else None
    row = None
    if found and best:
        share = float(found.coarse[best[0].id]["share"])
        samples, seen = found.samples(best[0]), found.canaries
        row = row_json(row_of(bundle, group, best[0], samples, share, found.machine, seen, date))
    return {
        "group": group.id,
        "code": group.code,
        "row": row,
        "flag": flag,
        "in_use_us": found.us(group.before) if found else None,
        "modelled_us": found.us(_modelled(group)) if found else None,
        "canaries": [c.gb_s for c in found.canaries] if found else [],
        "ceiling": found.ceiling if found else None,
        "about": {
            "kernel": group.kernel,
            "model": group.model,
            "family": group.family,
            "bucket": group.bucket,
            "placements": group.placements,
            "chosen": group.chosen,
            "share": round(group.share, 5),
            "ceiling_us": round(ceiling_us(bundle.device, group), 4),
            "predicted_us": round(best[0].modelled_us, 3) if best else None,
            "before_verdict": group.before_verdict,
            "looked_at": group.looked_at,
            "candidates": len(group.candidates),
            "pruned": to_json(group.pruned),
        },
    }


def _modelled(group: Group) -> Mapping[str, int]:
    """What a build without tables would take."""
    return next((c.choice for c in group.candidates if c.why == "model's best"), {})
