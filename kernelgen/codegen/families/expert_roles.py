"""Owns the shapes of kernels around routed experts: a router's choice, products, the sum."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.codegen.families.roles import ANCHORS
from kernelgen.core.dtypes import FLOAT32
from kernelgen.formats import WeightFormat
from kernelgen.ir.graph import Node
from kernelgen.ir.op import Trait
from kernelgen.ops import ChooseExperts
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region


@dataclass(frozen=True)
class RouteRoles:
    """Choice of experts and what follows from it, each row by itself."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class ExpertRoles:
    """Products of one row with chosen matrices: one, or two that meet; what finishes them."""

    anchors: tuple[Node, ...]
    stacks: tuple[str, ...]
    """base values of the weights `[E, N, K]`"""
    sum: Node | None
    """the weighted sum over a token's experts: what follows works on `[T, N]`, else `[T, k, N]`"""
    epilogue: tuple[Node, ...]
    outputs: tuple[str, ...]
    route: tuple[Node, ...] = ()
    """the choice of these experts, and what follows from it, where it is made here"""
    beside: Node | None = None
    """a product of the same row for all experts (of a shared one) that meets the sum"""

    @property
    def ids(self) -> str:
        """The chosen experts `[T, k]`."""
        return self.anchors[0].inputs[2]


def route_roles(region: Region) -> RouteRoles | Refusal | None:
    """The region as a router's choice; None when it holds none."""
    nodes = region.with_trait(Trait.ROUTE)
    if not nodes:
        return None
    if len(nodes) < len(region.nodes):
        other = next(n for n in region.nodes if n not in nodes)
        return Refusal(_route_alone(region, other, nodes[0]), barrier=True)
    return RouteRoles(nodes)


def _route_alone(region: Region, other: Node, route: Node) -> str:
    if other.op.has(Trait.MATMUL):
        width = region.value(other.outputs[0]).type.row_width
        return f"{route.name} compares all {width} columns of {other.name}, finished tile by tile"
    return f"{other.name} needs the choice of {route.name}, which is made row by row"


def expert_roles(
    region: Region, *, sums: bool, routes: bool = False, beside: bool = False
) -> ExpertRoles | Refusal | None:
    """The region as products with chosen experts; None when it holds none.

    `sums`: whether the kernel can add up a token's experts as it goes, `routes`: whether it can
    choose them, `beside`: whether a plain product may meet the sum.
    """
    anchors = region.with_trait(Trait.EXPERTS)
    if not anchors:
        return None
    route = region.with_trait(Trait.ROUTE) if routes else ()
    plain = region.with_trait(Trait.MATMUL) if beside else ()
    others = [n for n in region.with_trait(ANCHORS) if n not in (*anchors, *route, *plain)]
    if others:
        return Refusal(_apart(others[0], anchors[0]), barrier=True)
    x, ids = anchors[0].inputs[0], anchors[0].inputs[2]
    for later in anchors[1:]:
        if later.inputs[0] != x:
            columns = region.value(later.inputs[0]).type.row_width
            text = f"{later.name} sums over all {columns} columns of an expert's result"
            return Refusal(f"{text}, which are finished tile by tile", barrier=True)
        if later.inputs[2] != ids:
            return Refusal(f"{anchors[0].name} and {later.name} go to different experts")
    if region.base(x) in region.made:
        return Refusal(f"every expert of a token would compute {x}, storing it once is cheaper")
    bad = _bad_route(region, route, anchors[0]) or _bad_beside(region, plain, anchors[0])
    return bad or _finished(region, anchors, sums, route, plain[0] if plain else None)


def _bad_route(region: Region, route: tuple[Node, ...], anchor: Node) -> Refusal | None:
    """Why the choice cannot be made in the kernel of the products."""
    if not route:
        return None
    if any(n.op.has(Trait.EXPERT_SUM) for n in region.nodes):
        return Refusal(f"{route[0].name} would be made again for every column of the sum")
    if not isinstance(route[0].op, ChooseExperts):
        return Refusal(f"{route[0].name} needs a choice that is made before")
    if region.base(anchor.inputs[2]) != route[0].outputs[0]:
        return Refusal(f"{anchor.name} does not read what {route[0].name} chooses")
    if any(n.inputs[1] != route[0].outputs[0] for n in route[1:]):
        return Refusal(f"{route[1].name} does not only weigh what {route[0].name} chooses")
    return None


def _bad_beside(region: Region, plain: tuple[Node, ...], anchor: Node) -> Refusal | None:
    """Why a plain product is not of the kind that meets the sum of experts."""
    if not plain:
        return None
    if len(plain) > 1 or not any(n.op.has(Trait.EXPERT_SUM) for n in region.nodes):
        return Refusal(_apart(plain[0], anchor), barrier=True)
    x, weight = (region.value(n).type for n in plain[0].inputs)
    stack = region.value(anchor.inputs[1]).type
    if region.base(plain[0].inputs[0]) in region.made or x.leading is None:
        return Refusal(f"every tile would compute {plain[0].inputs[0]}, storing it is cheaper")
    if isinstance(weight.dtype, WeightFormat) or weight.dtype != stack.dtype:
        text = f"{plain[0].name} multiplies {weight.dtype}, {anchor.name} {stack.dtype}"
        return Refusal(f"{text}: two ways to read")
    if weight.shape[0] != stack.shape[1]:
        return Refusal(f"{plain[0].name} and {anchor.name} have different columns")
    return None


def _apart(other: Node, experts: Node) -> str:
    if other.op.has(Trait.ROUTE):
        return f"which matrices {experts.name} reads is known once {other.name} is done"
    return (
        f"{experts.name} reads the matrices of chosen experts, {other.name} the same for all rows"
    )


def _finished(
    region: Region,
    anchors: tuple[Node, ...],
    sums: bool,
    route: tuple[Node, ...],
    beside: Node | None,
) -> ExpertRoles | Refusal:
    """The epilogue: pointwise on what the anchors or their sum leave."""
    made = {a.outputs[0] for a in anchors}
    if len(anchors) > 2 or len({region.value(m).type for m in made}) > 1:
        return Refusal("only two products of equal width can meet")
    if len({region.value(a.inputs[1]).type.dtype for a in anchors}) > 1:
        return Refusal("two products of different formats are read in two ways")
    total: Node | None = None
    epilogue = []
    for node in region.nodes:
        if node in anchors or node in route or node is beside:
            continue
        inputs = [region.base(i) for i in node.inputs]
        if node.op.has(Trait.EXPERT_SUM):
            if not sums:
                text = f"{node.name} adds up experts that are computed at different times"
                return Refusal(text, barrier=True)
            if len(anchors) > 1 or inputs[0] != anchors[0].outputs[0] or total is not None:
                return Refusal(f"{node.name} does not add up the product as it is")
            if region.value(inputs[0]).type.dtype != FLOAT32:
                return Refusal(f"{inputs[0]} is rounded before it is added up")
            total, made = node, {node.outputs[0], *(beside.outputs if beside else ())}
            continue
        if not node.op.has(Trait.POINTWISE):
            return Refusal(f"{node.name} needs whole rows, which are finished tile by tile", True)
        bad = _bad_pointwise(region, node, made, total)
        if bad is not None:
            return bad
        epilogue.append(node)
        made |= set(node.outputs)
    sides = [n for n in (total, beside) if n is not None]
    finished = [n.outputs[0] for n in (*anchors, *sides, *epilogue)]
    outputs = tuple(v for v in finished if v in region.outputs)
    if total and anchors[0].outputs[0] in outputs:
        return Refusal(f"{anchors[0].outputs[0]} is read elsewhere")
    stacks = tuple(region.base(a.inputs[1]) for a in anchors)
    return ExpertRoles(anchors, stacks, total, tuple(epilogue), outputs, route, beside)


def _bad_pointwise(
    region: Region, node: Node, made: set[str], total: Node | None
) -> Refusal | None:
    inputs = [region.base(i) for i in node.inputs]
    if not any(i in made for i in inputs):
        return Refusal(f"{node.name} does not depend on the products")
    shape = region.value(node.outputs[0]).type.shape
    for name in node.inputs:
        if region.base(name) in made:
            continue
        if total is not None and region.value(name).type.shape == shape:
            continue
        if total is None or region.value(name).type.shape != shape[-1:]:
            return Refusal(f"{node.name} reads {name}, which has other rows")
    return None
