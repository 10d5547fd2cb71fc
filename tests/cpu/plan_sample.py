"""A plan as JSON data for tests of text and pages: two layer kinds, hostile names on request."""

from __future__ import annotations

from typing import Any


def kernel(
    name: str, layer: int | None, *ops: str, us: float = 10.0, **more: Any
) -> dict[str, Any]:
    made = {
        "name": name,
        "layer": layer,
        "family": "linear",
        "backend": "cpp",
        "ops": list(ops),
        "bytes": 100_000,
        "flops": 200_000,
        "predicted_us": us,
        "verdict": "modelled",
        "choice": {},
        "limits": ["memory"],
    }
    return made | more


def fusion(a: str, b: str, taken: bool, reason: str = "because") -> dict[str, Any]:
    return {
        "a": a,
        "b": b,
        "block": "layer",
        "rule": "epilogue",
        "taken": taken,
        "reason": reason,
        "bytes_saved": 2304,
        "launches_saved": 1,
        "times": 4,
    }


def plan(layers: int = 4, hostile: str = "") -> dict[str, Any]:
    """Even layers differ from odd ones by one kernel; `hostile` goes into every text field."""
    kernels = [kernel("embed" + hostile, None, "embed", us=1.0, flops=0)]
    for layer in range(layers):
        kernels.append(kernel("qkv", layer, "norm", "q", "k" + hostile))
        name = "attend" if layer % 2 else "attend_window"
        kernels.append(kernel(name, layer, "attn", us=5.0, family="attention"))
    kernels.append(kernel("head", None, "head", "sample", us=9.0))
    for made in kernels:
        made["family"] += hostile
    return {
        "schema": 1,
        "model": "toy" + hostile,
        "target": "sm_90:h200",
        "phase": "decode",
        "size": 8,
        "context": 512,
        "kernels": kernels,
        "fusions": [
            fusion("norm", "q", True, "rows are prepared" + hostile),
            fusion("q", "attn", False, "needs whole rows" + hostile),
        ],
        "coverage": {"modelled": {"kernels": len(kernels), "share": 1.0}},
        "predicted_us": sum(k["predicted_us"] for k in kernels),
        "floor_us": 20.0,
        "floor_bytes": 91_800_000,
        "workspace_bytes": 4096,
        "candidates": 12,
    }
