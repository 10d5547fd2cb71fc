"""Owns the Triton of a router's choice: experts of each token and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel, Grid
from kernelgen.codegen.families.expert_roles import RouteRoles
from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.families.triton_route import RouteTile
from kernelgen.codegen.triton.expressions import triton_name
from kernelgen.codegen.triton.kernels import Choice, StepLayout
from kernelgen.codegen.triton.single import single_launch
from kernelgen.ir.graph import Node
from kernelgen.ir.types import Sizes
from kernelgen.ops import ChooseExperts, MapExperts, WeighExperts
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel

_EXP = "tl.extra.libdevice.exp"


def route_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """The choice of experts and their weights, one launch."""
    tile, region, roles = RouteTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, RouteRoles)

    def grid(sizes: Sizes) -> Grid:
        return (ceil_div(sizes.tokens, tile.rows), 1, 1)

    context = {"route": route_context(region, roles.nodes)}
    shape = (tile.warps, 1)
    return single_launch(kernel, why, "route", context, tile, {"ROWS": tile.rows}, shape, grid)


def route_context(region: Region, nodes: Sequence[Node]) -> dict[str, Any]:
    """What the macros of `triton/route.j2` need: statements for tokens `row`."""
    found: dict[str, Any] = {"chosen": None, "weighed": None, "lines": [], "loads": []}
    names: dict[str, str] = {}
    logits, top = "", region.value(nodes[0].outputs[0]).type.row_width
    experts = 1

    def ids(name: str) -> str:
        base = region.base(name)
        if base not in names:
            names[base] = f"{triton_name(base)}_v"
            load = f"tl.load({triton_name(base)} + row * TOP + slot, mask=held, other=0)"
            found["loads"].append(f"{names[base]} = {load}")
        return names[base]

    for node in nodes:
        out = node.outputs[0]
        if isinstance(node.op, MapExperts):
            names[out] = f"{triton_name(out)}_v"
            table = triton_name(region.base(node.inputs[1]))
            load = f"{names[out]} = tl.load({table} + {ids(node.inputs[0])}, mask=held, other=0)"
            found["loads"].append(load)
            continue
        logits = triton_name(region.base(node.inputs[0]))
        experts = region.value(node.inputs[0]).type.row_width
        names[out] = f"{triton_name(out)}_v"
        if isinstance(node.op, ChooseExperts):
            found["lines"] = _values(region, node, node.op)
            groups = {k: getattr(node.op, k) for k in ("groups", "kept_groups", "group_top")}
            found["chosen"] = {"ids": names[out], **groups}
        elif isinstance(node.op, WeighExperts):
            found["weighed"] = _weighed(node.op, logits, ids(node.inputs[1]), names[out])
    made = [n.outputs[0] for n in nodes if n.outputs[0] in region.outputs]
    outputs = [{"pointer": triton_name(o), "value": names[o]} for o in made]
    width, slots = next_power_of_two(experts), next_power_of_two(top)
    sizes = {"experts": experts, "width": width, "top": top, "slots": slots}
    return found | sizes | {"logits": logits, "outputs": outputs}


def _values(region: Region, node: Node, op: ChooseExperts) -> list[str]:
    """What experts are compared by."""
    if op.by_logits and len(node.inputs) == 1:
        return ["value = logit"]
    lines = [*_prepared(op.scoring), f"value = {_score(op.scoring, 'logit')}"]
    if len(node.inputs) > 1:
        bias = triton_name(region.base(node.inputs[1]))
        lines.append(f"value += tl.load({bias} + col, mask=there, other=0.0)")
    return lines


def _prepared(scoring: str) -> list[str]:
    """What a softmax over the whole row needs to know of it."""
    if scoring != "softmax":
        return []
    return [
        "top_logit = tl.max(logit, axis=1)[:, None]",
        f"mass = tl.sum({_EXP}(logit - top_logit), axis=1)[:, None]",
    ]


def _score(scoring: str, logit: str) -> str:
    return {
        "softmax": f"{_EXP}({logit} - top_logit) / mass",
        "sigmoid": f"1.0 / (1.0 + {_EXP}(-{logit}))",
        "sqrtsoftplus": f"tl.sqrt(softplus({logit}))",
    }[scoring]


def _weighed(op: WeighExperts, logits: str, ids: str, out: str) -> dict[str, Any]:
    """Scores of the chosen; a renormalised softmax needs the chosen logits alone."""
    before = [f"given = tl.load({logits} + row * EXPERTS + {ids}, mask=held, other=float('-inf'))"]
    score = _score(op.scoring, "given")
    if op.scoring == "softmax" and op.renormalise:
        before.append("largest = tl.max(given, axis=1)[:, None]")
        score = f"{_EXP}(given - largest)"
    else:
        before += _prepared(op.scoring)
    return {
        "before": before,
        "score": score,
        "renormalise": op.renormalise,
        "factor": repr(float(op.scale)),
        "weights": out,
    }
