"""Owns the plan: kernels, launches with their operands, buffers, and the fusions taken and refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelgen.ir.graph import Graph
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Match, Price


@dataclass(frozen=True)
class Operand:
    """One thing that a launch is given.

    `kind`: buffer (workspace), bound (a buffer that the runtime owns: logits, sampled), weight, state, step.
    `name`: the value's name in its block, or the full name of a weight.
    """

    kind: str
    name: str
    offset_bytes: int = 0
    layer: int | None = None


@dataclass(frozen=True)
class Kernel:
    """One distinct kernel of a plan: two launches with equal variants share it."""

    name: str
    match: Match
    signature: tuple[str, ...]
    """values in operand order: region inputs, then outputs, then `scratch` if it wants any"""

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ops it covers."""
        return tuple(node.name for node in self.match.region.nodes)


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a step."""

    kernel: Kernel
    layer: int | None
    operands: tuple[Operand, ...]
    price: Price


@dataclass(frozen=True)
class Fusion:
    """Two neighbouring ops: one kernel or two, by which rule, and why."""

    a: str
    b: str
    block: str
    rule: str
    taken: bool
    reason: str
    bytes_saved: int
    launches_saved: int
    times: int
    """placements of the block in a step"""


@dataclass(frozen=True)
class Plan:
    """A whole step of one phase at one size."""

    graph: Graph
    target: str
    phase: str
    size: int
    sizes: Sizes
    kernels: tuple[Kernel, ...]
    launches: tuple[Launch, ...]
    fusions: tuple[Fusion, ...]
    workspace_bytes: int
    candidates: int
    floor_us: float
    floor_bytes: int

    @property
    def predicted_us(self) -> float:
        """Sum over the launches."""
        return sum(launch.price.us for launch in self.launches)

    def coverage(self) -> dict[str, Any]:
        """How many launches each look-up verdict has, and which share of the predicted time."""
        total = self.predicted_us or 1.0
        found: dict[str, dict[str, float]] = {}
        for launch in self.launches:
            entry = found.setdefault(launch.price.verdict, {"kernels": 0, "share": 0.0})
            entry["kernels"] += 1
            entry["share"] += launch.price.us / total
        return {k: {"kernels": int(v["kernels"]), "share": round(v["share"], 4)} for k, v in sorted(found.items())}

    def to_json(self) -> dict[str, Any]:
        """The plan as `docs/contracts.md` spells it: one entry for each launch of the step."""
        return {
            "schema": 1,
            "model": self.graph.name,
            "target": self.target,
            "phase": self.phase,
            "size": self.size,
            "context": self.sizes.context,
            "kernels": [_launch_json(launch) for launch in self.launches],
            "fusions": [_fusion_json(fusion) for fusion in self.fusions],
            "coverage": self.coverage(),
            "predicted_us": round(self.predicted_us, 3),
            "floor_us": round(self.floor_us, 3),
            "floor_bytes": self.floor_bytes,
            "workspace_bytes": self.workspace_bytes,
            "candidates": self.candidates,
        }


def _launch_json(launch: Launch) -> dict[str, Any]:
    match, price = launch.kernel.match, launch.price
    return {
        "name": launch.kernel.name,
        "layer": launch.layer,
        "family": match.family.name,
        "backend": match.family.backend,
        "ops": list(launch.kernel.ops),
        "bytes": price.bytes,
        "flops": price.flops,
        "predicted_us": round(price.us, 3),
        "verdict": price.verdict,
        "choice": dict(price.choice),
        "limits": list(price.limits),
    }


def _fusion_json(fusion: Fusion) -> dict[str, Any]:
    return {
        "a": fusion.a,
        "b": fusion.b,
        "block": fusion.block,
        "rule": fusion.rule,
        "taken": fusion.taken,
        "reason": fusion.reason,
        "bytes_saved": fusion.bytes_saved,
        "launches_saved": fusion.launches_saved,
        "times": fusion.times,
    }
