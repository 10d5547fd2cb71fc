"""Owns the C++ of routed experts: the choice of a row, products with a printed epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelgen.codegen.cpp.expressions import (
    cpp_expr,
    cpp_float,
    cpp_name,
    cpp_type,
    rounded,
    stored,
)
from kernelgen.codegen.families.expert_roles import ExpertRoles, RouteRoles
from kernelgen.ir.graph import Node, Role
from kernelgen.ops import ChooseExperts, MapExperts, Pointwise, WeighExperts
from kernelgen.planner.network import Region
from kernelgen.planner.plan import Kernel

_SCORES = {"sigmoid": "kg::sigmoid", "sqrtsoftplus": "kg::sqrt_softplus"}


def route_context(kernel: Kernel, layouts: Mapping[str, str]) -> dict[str, Any]:
    """What `cpp/route.cpp.j2` needs: statements for token `t`."""
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, RouteRoles)
    lines: list[str] = []
    rows: dict[str, str] = {}
    for node in roles.nodes:
        for name in dict.fromkeys(region.base(i) for i in node.inputs):
            _outside(region, name, rows, lines)
        out = node.outputs[0]
        rows[out] = _own(region, out, lines)
        lines += _routed(region, node, rows)
    return {"body": lines}


def _outside(region: Region, name: str, rows: dict[str, str], lines: list[str]) -> None:
    """A pointer to the token's row of what comes from outside; parameters are as they are."""
    value = region.value(name)
    if name in rows or value.role not in (Role.TEMP, Role.STREAM):
        return
    rows[name] = f"{cpp_name(name)}_row"
    at = f"{cpp_name(name)} + (size_t)t * {value.type.static_elements}"
    lines.append(f"const {cpp_type(value.type.dtype)}* const {rows[name]} = {at};")


def _own(region: Region, out: str, lines: list[str]) -> str:
    """Where a result lies: in its buffer, or in a local array."""
    type_ = region.value(out).type
    kind, count, row = cpp_type(type_.dtype), type_.static_elements, f"{cpp_name(out)}_row"
    if out in region.outputs:
        lines.append(f"{kind}* const {row} = {cpp_name(out)} + (size_t)t * {count};")
    else:
        lines.append(f"{kind} {row}[{count}];")
    return row


def _routed(region: Region, node: Node, rows: Mapping[str, str]) -> list[str]:
    op, out, first = node.op, rows[node.outputs[0]], rows[region.base(node.inputs[0])]
    width = region.value(node.inputs[0]).type.row_width
    count = region.value(node.outputs[0]).type.row_width
    logit = f"[&](int i) {{ return {first}[i]; }}"
    if isinstance(op, ChooseExperts):
        lines, value = _values(region, node, op, first, width)
        sizes = f"{width}, {count}, {op.groups}, {op.kept_groups}, {op.group_top}"
        return [*lines, f"kg::choose_experts<{sizes}>({value}, {out});"]
    if isinstance(op, MapExperts):
        table = cpp_name(region.base(node.inputs[1]))
        return [f"for (int j = 0; j < {count}; ++j) {out}[j] = {table}[{first}[j]];"]
    assert isinstance(op, WeighExperts)
    ids, factor = rows[region.base(node.inputs[1])], cpp_float(op.scale)
    if op.scoring == "softmax" and op.renormalise:
        return [f"kg::weigh_by_softmax<{width}, {count}>({logit}, {ids}, {factor}, {out});"]
    lines, score = _score(op.scoring, f"{cpp_name(node.outputs[0])}_score", first, width)
    sizes = f"{width}, {count}, {'true' if op.renormalise else 'false'}"
    return [*lines, f"kg::weigh_experts<{sizes}>({logit}, {ids}, {score}, {factor}, {out});"]


def _values(
    region: Region, node: Node, op: ChooseExperts, row: str, width: int
) -> tuple[list[str], str]:
    """What experts are compared by, as an array where it takes more than a look."""
    if op.by_logits and len(node.inputs) == 1:
        return [], f"[&](int i) {{ return {row}[i]; }}"
    name = f"{cpp_name(node.outputs[0])}_value"
    lines, score = _score(op.scoring, f"{name}_score", row, width)
    bias = f" + {cpp_name(region.base(node.inputs[1]))}[i]" if len(node.inputs) > 1 else ""
    lines += [
        f"float {name}[{width}];",
        f"for (int i = 0; i < {width}; ++i) {name}[i] = {score}({row}[i]){bias};",
    ]
    return lines, f"[&](int i) {{ return {name}[i]; }}"


def _score(scoring: str, name: str, row: str, width: int) -> tuple[list[str], str]:
    """Something to call with a logit."""
    if scoring == "softmax":
        return [
            f"const auto {name} = kg::softmax<{width}>([&](int i) {{ return {row}[i]; }});"
        ], name
    return [f"const auto {name} = [](float x) {{ return {_SCORES[scoring]}(x); }};"], name


def experts_context(kernel: Kernel, layouts: Mapping[str, str]) -> dict[str, Any]:
    """What both templates of products with chosen experts need."""
    region, roles = kernel.match.region, kernel.match.roles
    assert isinstance(roles, ExpertRoles)
    x, ids = region.value(roles.anchors[0].inputs[0]).type, region.value(roles.ids).type
    stack = region.value(roles.stacks[0]).type
    two = len(roles.anchors) > 1
    return {
        "act": cpp_type(x.dtype),
        "weight": cpp_type(stack.dtype),
        "experts": stack.shape[0],
        "n": stack.shape[1],
        "k": stack.row_width,
        "top": ids.row_width,
        "share": ids.row_width if len(x.shape) == 2 else 1,
        "x": cpp_name(region.base(roles.anchors[0].inputs[0])),
        "ids": cpp_name(region.base(roles.ids)),
        "sum": cpp_name(region.base(roles.sum.inputs[1])) if roles.sum else "",
        "names": [a.name for a in roles.anchors],
        "weights": [cpp_name(w) for w in roles.stacks],
        "accumulators": ["acc0", "acc1"] if two else ["acc"],
        "epilogue": _epilogue(region, roles, int(stack.shape[1])),  # type: ignore[arg-type]
    }


def _epilogue(region: Region, roles: ExpertRoles, n: int) -> list[str]:
    """Statements for column `n0 + i` of row `t`; every result is rounded to its own dtype."""
    lines: list[str] = []
    names: dict[str, str] = {}
    starts = (roles.sum,) if roles.sum else roles.anchors
    for number, node in enumerate(starts):
        out = node.outputs[0]
        names[out] = cpp_name(out)
        acc = f"acc{number}[i]" if len(starts) > 1 else "acc[i]"
        value = rounded(acc, region.value(out).type.dtype)
        lines.append(f"const float {names[out]}_value = {value};")
    for node in roles.epilogue:
        assert isinstance(node.op, Pointwise)
        out = node.outputs[0]
        inputs = [_column(region, name, names, n) for name in node.inputs]
        names[out] = cpp_name(out)
        text = rounded(cpp_expr(node.op.expr, inputs), region.value(out).type.dtype)
        lines.append(f"const float {names[out]}_value = {text};")
    for out in roles.outputs:
        text = stored(f"{names[out]}_value", region.value(out).type.dtype)
        lines.append(f"{names[out]}[(size_t)t * {n} + n0 + i] = {text};")
    return lines


def _column(region: Region, name: str, made: Mapping[str, str], n: int) -> str:
    base = region.base(name)
    if base in made:
        return f"{made[base]}_value"
    row = "" if region.value(base).role is Role.WEIGHT else f"(size_t)t * {n} + "
    return f"kg::to_float({cpp_name(base)}[{row}n0 + i])"
