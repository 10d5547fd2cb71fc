"""Owns the planner's argument for one kernel, as lines for the head of its source."""

from __future__ import annotations

from kernelgen.planner.plan import Kernel, Plan


def argument(kernel: Kernel, plan: Plan) -> tuple[str, ...]:
    """Why these ops share a kernel: one line a fusion rule, with the pairs that it joined."""
    ops = set(kernel.ops)
    found: dict[str, dict[str, None]] = {}
    for fusion in plan.fusions:
        if fusion.taken and fusion.a in ops and fusion.b in ops:
            pairs = found.setdefault(f"{fusion.rule} ({fusion.reason})", {})
            pairs[f"{fusion.a} → {fusion.b}"] = None
    return tuple(f"{rule}: {', '.join(pairs)}" for rule, pairs in found.items())
