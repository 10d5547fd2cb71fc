"""Owns the launches of routed experts: choices, products pair by pair, products by expert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelgen.codegen.cuda.launches import GpuKernel, GpuPass, Grid
from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.codegen.families.expert_roles import ExpertRoles, RouteRoles
from kernelgen.codegen.families.triton_block import ceil_div, next_power_of_two
from kernelgen.codegen.families.triton_experts import (
    ORDER_BLOCK,
    PairsTile,
    RouteTile,
    SortedTile,
    most_bands,
    start_words,
)
from kernelgen.codegen.rendering import render
from kernelgen.codegen.triton.expressions import rounded, stored, triton_name
from kernelgen.codegen.triton.frame import Frame, Mask
from kernelgen.codegen.triton.kernels import Choice, Given, StepLayout, header, kernel_arguments
from kernelgen.codegen.triton.tile_program import TileProgram
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.ir.graph import Node
from kernelgen.ir.types import Sizes
from kernelgen.ops import ChooseExperts, MapExperts, WeighExperts
from kernelgen.planner.network import Region
from kernelgen.planner.plan import SCRATCH, Kernel

_EXP = "tl.extra.libdevice.exp"
_PAIR = Frame("row", "col", Mask("mine"), Mask("mine"), Mask("live"))
_BAND = Frame(
    "pair[:, None]", "col[None, :]", Mask("mine"), Mask("(col < N)[None, :]"), Mask("live[:, None]")
)


def route_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """The choice of experts and their weights, one launch."""
    tile, region, roles = RouteTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, RouteRoles)
    tokens = region.value(roles.nodes[0].outputs[0]).type

    def grid(sizes: Sizes) -> Grid:
        return (ceil_div(sizes.tokens, tile.rows), 1, 1)

    assert tokens.leading is not None
    context = route_context(region, roles)
    return _one(kernel, why, "route", context, {"ROWS": tile.rows}, (tile.warps, 1), grid)


def pairs_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Products pair by pair, one launch; with the sum over a token's experts if it is asked."""
    tile, region, roles = PairsTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, ExpertRoles)
    context = _products(region, roles, _PAIR)
    top, total = context["top"], roles.sum

    def grid(sizes: Sizes) -> Grid:
        rows = sizes.tokens * (1 if total else top)
        return (ceil_div(context["n"], tile.outputs), rows, 1)

    more = {
        "pairs": top if total else 1,
        "sum": triton_name(region.base(total.inputs[1])) if total else "",
    }
    constants = {"OUTPUTS": tile.outputs, "DEPTH": tile.depth}
    return _one(kernel, why, "experts_pairs", context | more, constants, (tile.warps, 1), grid)


def sorted_kernel(
    kernel: Kernel, choice: Choice, layout: StepLayout, why: tuple[str, ...] = ()
) -> GpuKernel:
    """Two launches: pairs sorted by expert, then tiles of pairs of one expert."""
    tile, region, roles = SortedTile(**choice), kernel.match.region, kernel.match.roles
    assert isinstance(roles, ExpertRoles)
    context = _products(region, roles, _BAND) | {"exact": not _narrow(region, roles)}
    experts, top = context["experts"], context["top"]
    context |= {"starts": start_words(experts), "width": next_power_of_two(experts + 2)}
    columns = ceil_div(context["n"], tile.outputs)

    def grid(sizes: Sizes) -> Grid:
        return (columns * most_bands(sizes.tokens * top, experts, tile.rows), 1, 1)

    constants = {"ROWS": tile.rows, "OUTPUTS": tile.outputs, "DEPTH": tile.depth}
    shape = (tile.warps, tile.stages)
    product = _one(kernel, why, "experts_sorted", context, constants, shape, grid)
    return GpuKernel((_order(kernel, roles, context), *product.passes))


def _order(kernel: Kernel, roles: ExpertRoles, context: Mapping[str, Any]) -> GpuPass:
    """The launch that sorts, which needs ids, scratch and the step's arguments alone."""
    wanted = (triton_name(kernel.match.region.base(roles.ids)), SCRATCH, "args")
    given = {g.argument.name: g for g in kernel_arguments(kernel)}
    found = [given[name] for name in wanted]
    function = f"{kernel.name}_order"
    text = render(
        "triton/experts_order.py.j2",
        name=function,
        header=[f"{kernel.name}, first launch: pairs of token and expert by expert"],
        parameters=_declared(found),
        **{key: context[key] for key in ("experts", "top", "ids", "starts")},
    )
    unit = TritonUnit(
        name=function,
        text=text,
        function=function,
        signature=tuple(g.argument for g in found),
        constants=(("BLOCK", ORDER_BLOCK),),
        num_warps=4,
        num_stages=1,
        pdl=True,
    )
    blocks = context["experts"] + 1
    return GpuPass(unit, tuple(g.source for g in found), lambda sizes: (blocks, 1, 1))


def _one(
    kernel: Kernel,
    why: tuple[str, ...],
    template: str,
    context: Mapping[str, Any],
    constants: Mapping[str, int],
    shape: tuple[int, int],
    grid: Any,
) -> GpuKernel:
    """The one launch of a template. `shape`: warps and stages."""
    given = kernel_arguments(kernel)
    text = render(
        f"triton/{template}.py.j2",
        name=kernel.name,
        header=header(kernel, why),
        parameters=_declared(given),
        **context,
    )
    words = [f"{key[0].lower()}{value}" for key, value in constants.items()]
    unit = TritonUnit(
        name="_".join([kernel.name, *words, f"w{shape[0]}", f"n{shape[1]}"]),
        text=text,
        function=kernel.name,
        signature=tuple(g.argument for g in given),
        constants=tuple(constants.items()),
        num_warps=shape[0],
        num_stages=shape[1],
        pdl=True,
        tile=", ".join(f"{key.lower()} {value}" for key, value in constants.items()),
    )
    return GpuKernel((GpuPass(unit, tuple(g.source for g in given), grid),))


def _declared(given: list[Given] | tuple[Given, ...]) -> list[dict[str, str]]:
    return [{"name": g.argument.name, "note": g.note} for g in given]


def _narrow(region: Region, roles: ExpertRoles) -> bool:
    """Whether tensor cores multiply bfloat16."""
    x, stack = (region.value(n).type.dtype for n in roles.anchors[0].inputs[:2])
    return x == stack == BFLOAT16


def _products(region: Region, roles: ExpertRoles, frame: Frame) -> dict[str, Any]:
    """What both product templates need; `lines` finish columns from `sum0` and `sum1`."""
    x, ids = region.value(roles.anchors[0].inputs[0]).type, region.value(roles.ids).type
    stack = region.value(roles.stacks[0]).type
    n, top = stack.shape[1], ids.row_width
    program = TileProgram(region, frame)
    for i, node in enumerate((roles.sum,) if roles.sum else roles.anchors):
        out = node.outputs[0]
        text = rounded(f"sum{i}", region.value(out).type.dtype)
        program.bind(out, program.let(out, text) if text != f"sum{i}" else text)
    for out in roles.outputs:
        value, dtype = program.value(out), region.value(out).type.dtype
        pointer = f"{triton_name(out)} + {frame.row} * {n} + {frame.column}"
        program.lines.append(frame.tile.store(pointer, stored(value, dtype)))
    return {
        "experts": stack.shape[0],
        "n": n,
        "k": stack.row_width,
        "top": top,
        "share": top if len(x.shape) == 2 else 1,
        "x": triton_name(region.base(roles.anchors[0].inputs[0])),
        "ids": triton_name(region.base(roles.ids)),
        "matrices": len(roles.anchors),
        "stacks": [triton_name(s) for s in roles.stacks],
        "lines": program.lines,
    }


def route_context(region: Region, roles: RouteRoles) -> dict[str, Any]:
    """What `triton/route.py.j2` needs."""
    found: dict[str, Any] = {"chosen": None, "weighed": None, "lines": [], "loads": []}
    names: dict[str, str] = {}
    logits, top = "", region.value(roles.nodes[0].outputs[0]).type.row_width
    experts = 1

    def ids(name: str) -> str:
        base = region.base(name)
        if base not in names:
            names[base] = f"{triton_name(base)}_v"
            load = f"tl.load({triton_name(base)} + row * TOP + slot, mask=held, other=0)"
            found["loads"].append(f"{names[base]} = {load}")
        return names[base]

    for node in roles.nodes:
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
    outputs = [{"pointer": triton_name(o), "value": names[o]} for o in region.outputs]
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
