"""Owns the plan: kernels, launches with operands, and the fusions taken and refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from kernelgen.ir.graph import Graph
from kernelgen.ir.types import Dim, Sizes
from kernelgen.planner.family import Match, Pass, Price

SCRATCH = "scratch"
"""what a signature calls the workspace that only this launch uses"""
COUNTERS = "counters"
"""what a signature calls the int32 words that are zero between launches"""


@dataclass(frozen=True)
class Operand:
    """One thing that a launch is given.

    `kind`: buffer (workspace), bound (a buffer that the runtime owns: logits, sampled, counters),
    weight, state, step.
    `name`: the value's name in its block, or the full name of a weight.
    """

    kind: str
    name: str
    offset_bytes: int = 0
    layer: int | None = None
    number: int = 0
    """which of the layer's states"""

    def at(self, layer: int | None) -> Operand:
        """The operand of a block where the block is placed: parameters get the layer's name, states
        its number.
        """
        if self.kind == "weight" and layer is not None:
            return replace(self, name=f"layers.{layer}.{self.name}")
        if self.kind == "table":
            return replace(self, kind="weight")
        return replace(self, layer=layer) if self.kind == "state" else self


@dataclass(frozen=True)
class Kernel:
    """One distinct kernel of a plan: two launches with equal variants share it."""

    name: str
    match: Match
    signature: tuple[str, ...]
    """values in operand order: region inputs, outputs, then `scratch` and `counters` if it wants
    any"""

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ops it covers."""
        return tuple(node.name for node in self.match.region.nodes)

    def launch_sizes(self, sizes: Sizes) -> Sizes:
        """What a grid has to cover: as many logit rows as a step may ask for, where they are
        counted."""
        region = self.match.region
        names = (*region.inputs, *region.outputs)
        counts_rows = any(region.value(name).type.leading is Dim.B for name in names)
        return sizes.capacity if counts_rows else sizes


@dataclass(frozen=True)
class Launch:
    """One use of a kernel in a step."""

    kernel: Kernel
    layer: int | None
    wiring: tuple[Operand, ...]
    """operands as every placement of the block has them (kinds as in `Operand`, and table)"""
    price: Price

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """What this launch is given, in the order of the kernel's signature."""
        return tuple(operand.at(self.layer) for operand in self.wiring)


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
    counters: int
    """int32 words that some launch needs, zero before the first step and after each launch"""
    candidates: int
    floor_us: float
    floor_bytes: int
    varying: Mapping[str, str] | None = None
    """of a batch-invariant plan: the families that it must not have, and why; else None"""

    @cached_property
    def predicted_us(self) -> float:
        """Sum over the launches."""
        return sum(launch.price.us for launch in self.launches)

    @cached_property
    def launch_count(self) -> int:
        """Kernel launches of a step, second passes included."""
        return sum(1 + len(launch.price.passes) for launch in self.launches)

    def coverage(self) -> dict[str, Any]:
        """How many launches each look-up verdict has, and which share of the predicted time."""
        total = self.predicted_us or 1.0
        found: dict[str, dict[str, float]] = {}
        for launch in self.launches:
            entry = found.setdefault(launch.price.verdict, {"kernels": 0, "share": 0.0})
            entry["kernels"] += 1 + len(launch.price.passes)
            entry["share"] += launch.price.us / total
        return {
            verdict: {"kernels": int(entry["kernels"]), "share": round(entry["share"], 4)}
            for verdict, entry in sorted(found.items())
        }

    def to_json(self) -> dict[str, Any]:
        """The plan as `docs/contracts.md` spells it: one entry for each launch of the step."""
        return {
            "schema": 1,
            "model": self.graph.name,
            "target": self.target,
            "phase": self.phase,
            "size": self.size,
            "context": self.sizes.context,
            "kernels": [entry for launch in self.launches for entry in _launch_json(launch)],
            "fusions": [_fusion_json(fusion) for fusion in self.fusions],
            "coverage": self.coverage(),
            "predicted_us": round(self.predicted_us, 3),
            "floor_us": round(self.floor_us, 3),
            "floor_bytes": self.floor_bytes,
            "workspace_bytes": self.workspace_bytes,
            "candidates": self.candidates,
            **({} if self.varying is None else {"varying": dict(self.varying)}),
        }


def _launch_json(launch: Launch) -> list[dict[str, Any]]:
    """The kernel itself and one entry for each further pass of it."""
    match, price = launch.kernel.match, launch.price
    later: tuple[Pass, ...] = tuple(price.passes)
    whole: dict[str, Any] = {
        "name": launch.kernel.name,
        "layer": launch.layer,
        "family": match.family.name,
        "backend": match.family.backend,
        "ops": list(launch.kernel.ops),
        "bytes": price.bytes - sum(p.bytes for p in later),
        "flops": price.flops,
        "predicted_us": round(price.us - sum(p.us for p in later), 3),
        "verdict": price.verdict,
        "choice": dict(price.choice),
        "limits": list(price.limits),
    }
    rest = [
        whole
        | {
            "name": f"{launch.kernel.name}.{p.name}",
            "bytes": p.bytes,
            "flops": 0,
            "predicted_us": round(p.us, 3),
            "choice": {},
            "limits": [p.why],
        }
        for p in later
    ]
    return [whole, *rest]


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
