"""Owns what a build says of itself in its manifest, for people: its id and its table verdicts."""

from collections import defaultdict
from pathlib import Path

from ..artifact.bounded_json import Json, read_json
from ..artifact.read import MAX_MANIFEST_BYTES
from ..errors import ArtifactError

_DIGITS = 12


def build_notes(folder: Path, target: str) -> list[str]:
    """Return lines about the build in `folder`; what its manifest does not hold is left out."""
    values = read_json(folder / "manifest.json", MAX_MANIFEST_BYTES, ArtifactError)
    targets = values.get("targets")
    own: dict[str, Json] = {}
    for entry in targets if isinstance(targets, list) else []:
        if isinstance(entry, dict) and entry.get("target") == target:
            own = entry
    spec, plans = _digest(values.get("hashes"), "spec"), _digest(own.get("hashes"), "plans")
    lines = [f"build id {spec}, plans {plans}, {values.get('generator')}"] if spec else []
    return lines + _verdicts(own.get("coverage"))


def _digest(hashes: Json, name: str) -> str:
    value = hashes.get(name) if isinstance(hashes, dict) else None
    return value[:_DIGITS] if isinstance(value, str) else ""


def _verdicts(coverage: Json) -> list[str]:
    """Return how the times of a plan are known, by phase: the mean of its sizes."""
    shares: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    sizes: dict[str, int] = defaultdict(int)
    for plan, verdicts in coverage.items() if isinstance(coverage, dict) else ():
        phase = plan.partition(" ")[0]
        sizes[phase] += 1
        for verdict, told in verdicts.items() if isinstance(verdicts, dict) else ():
            share = told.get("share") if isinstance(told, dict) else None
            if isinstance(share, int | float):
                shares[phase][verdict].append(float(share))
    return [
        f"tables, {phase}: "
        + ", ".join(f"{verdict} {sum(found) / sizes[phase]:.0%}" for verdict, found in by.items())
        for phase, by in shares.items()
    ]
