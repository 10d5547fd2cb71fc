"""Owns reading the JSON of a plan back into frozen data for text and pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from kernelgen.core.decode import from_json
from kernelgen.core.errors import UnsupportedError, UsageError
from kernelgen.hw import parse_target

SCHEMA = 1


@dataclass(frozen=True)
class KernelView:
    """One launch of a step."""

    name: str
    layer: int | None
    family: str
    backend: str
    ops: tuple[str, ...]
    bytes: int
    flops: int
    predicted_us: float
    verdict: str
    choice: Mapping[str, int] = field(default_factory=dict)
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class FusionView:
    """Two neighbouring ops that share a kernel, or do not."""

    a: str
    b: str
    rule: str
    taken: bool
    reason: str
    bytes_saved: int
    launches_saved: int
    block: str = ""
    times: int = 1


@dataclass(frozen=True)
class CoverageView:
    """Launches with one look-up verdict, and their share of the predicted time."""

    kernels: int
    share: float


@dataclass(frozen=True)
class PlanView:
    """A whole step."""

    schema: Literal[1]
    model: str
    target: str
    phase: str
    size: int
    kernels: tuple[KernelView, ...]
    fusions: tuple[FusionView, ...]
    predicted_us: float
    floor_us: float
    """the same work if every byte were read once at full bandwidth and nothing else took time"""
    context: int = 0
    workspace_bytes: int = 0
    candidates: int = 0
    coverage: Mapping[str, CoverageView] = field(default_factory=dict)
    varying: Mapping[str, str] | None = None
    """of a batch-invariant plan: the families that it must not have, and why"""

    @property
    def title(self) -> str:
        """ "MODEL on sm_90:h200, decode of 8 requests, 1024 tokens of context"."""
        unit = "request" if self.phase == "decode" else "token"
        text = f"{self.model} on {self.target}, {self.phase} of {self.size} {unit}"
        text += "s" if self.size != 1 else ""
        return f"{text}, {self.context} tokens of context" if self.context else text

    @property
    def read_gb_s(self) -> float | None:
        """Read bandwidth that the plan was made for; None when the target is not ours."""
        try:
            return parse_target(self.target).read_gb_s
        except UnsupportedError:
            return None

    def memory_share(self, kernel: KernelView) -> float | None:
        """Part of the memory limit that a kernel is predicted to reach."""
        limit = self.read_gb_s
        if limit is None or kernel.predicted_us <= 0:
            return None
        return kernel.bytes / (limit * 1e3) / kernel.predicted_us


def read_plan(data: object, *, source: str = "plan.json") -> PlanView:
    """The plan in JSON data; fields that this version does not know are skipped.

    `UsageError` for anything that is not a plan of schema 1, with all problems at once.
    """
    if not isinstance(data, Mapping):
        raise UsageError("is not a plan", where=source, allowed="an object")
    known = _known(PlanView, data)
    for name, cls in (("kernels", KernelView), ("fusions", FusionView)):
        items = known.get(name)
        if isinstance(items, list):
            known[name] = [_known(cls, item) for item in items]
    return from_json(PlanView, known, source=source)


def _known(cls: type, data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    names = {f.name for f in fields(cls)}
    return {key: value for key, value in data.items() if key in names}
