"""Owns the shapes of kernels that several backends share: which op is anchor, prologue or epilogue, and what is not allowed."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.ir.graph import Node, Role
from kernelgen.ir.op import Trait
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

_ANCHORS = Trait.MATMUL | Trait.ATTENTION | Trait.SAMPLE


@dataclass(frozen=True)
class LinearGroup:
    """Projections whose results are finished together: one of them, or two that meet (gate and up)."""

    anchors: tuple[Node, ...]
    weights: tuple[str, ...]
    """base values of the weight matrices `[N, K]`"""
    epilogue: tuple[Node, ...]
    outputs: tuple[str, ...]
    """values stored, all `[rows, N]`"""


@dataclass(frozen=True)
class LinearRoles:
    """Projections of one row, with what prepares the row and what finishes the results."""

    x: str
    """the value that is multiplied; made inside if there is a prologue"""
    k: int
    prologue: tuple[Node, ...]
    groups: tuple[LinearGroup, ...]


@dataclass(frozen=True)
class RowRoles:
    """Ops that each token row decides for itself."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class AttentionRoles:
    """Attention, with what prepares queries and (in decode) stores the new keys and values."""

    anchor: Node
    query: tuple[Node, ...]
    """row ops on `[T, heads, D]` that make q"""
    insert: Node | None
    keys: tuple[Node, ...]
    """row ops that make what `insert` stores"""


def linear_roles(region: Region) -> LinearRoles | Refusal | None:
    """The region as projections of one row; None when it holds none."""
    anchors = region.with_trait(Trait.MATMUL)
    if not anchors:
        return None
    others = [n for n in region.with_trait(_ANCHORS) if n not in anchors]
    if others:
        return Refusal(
            f"{others[0].op.kind} needs whole results of other workers: a kernel boundary is the barrier"
        )
    x = anchors[0].inputs[0]
    if any(a.inputs[0] != x for a in anchors):
        return Refusal("a product of another row would wait for all columns of the first: a kernel boundary is the barrier")
    prologue, epilogue = _around(region, anchors)
    return (
        _bad_prologue(region, x, prologue)
        or _bad_epilogue(region, epilogue)
        or _grouped(region, x, anchors, prologue, epilogue)
    )


def _around(region: Region, anchors: tuple[Node, ...]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Nodes before the anchors, and the rest."""
    net = region.network
    before = 0
    for anchor in anchors:
        before |= net.ancestors[net.producer[anchor.outputs[0]]]
    rest = [n for n in region.nodes if n not in anchors]
    early = [n for n in rest if before >> net.producer[n.outputs[0]] & 1]
    return tuple(early), tuple(n for n in rest if n not in early)


def _bad_prologue(region: Region, x: str, prologue: tuple[Node, ...]) -> Refusal | None:
    allowed = Trait.POINTWISE | Trait.ROW_REDUCE | Trait.SELECT
    for node in prologue:
        if not node.op.has(allowed):
            return Refusal(f"{node.op.kind} cannot prepare the row of a projection")
        out = node.outputs[0]
        if not region.only_inside(out):
            return Refusal(f"{out} is also read outside: storing it once is the cheaper way")
        if len(region.value(out).type.shape) != 2:
            return Refusal(f"{out} is not a plain row")
    return None


def _bad_epilogue(region: Region, epilogue: tuple[Node, ...]) -> Refusal | None:
    for node in epilogue:
        if node.op.has(Trait.ROW_REDUCE):
            return Refusal("a row statistic needs every column, a worker holds one panel of them")
        if not node.op.has(Trait.POINTWISE):
            return Refusal(f"{node.op.kind} needs whole rows, a worker holds one panel of columns")
        if any(region.value(name).type.shape[-1:] == (1,) for name in node.inputs):
            return Refusal("an epilogue with one number a row is not covered")
        if len(region.value(node.outputs[0]).type.shape) != 2:
            return Refusal("a viewed result is finished by a row kernel")
    return None


def _grouped(
    region: Region,
    x: str,
    anchors: tuple[Node, ...],
    prologue: tuple[Node, ...],
    epilogue: tuple[Node, ...],
) -> LinearRoles | Refusal:
    """Join anchors that meet in an epilogue op."""
    member: dict[str, int] = {a.outputs[0]: i for i, a in enumerate(anchors)}
    for node in epilogue:
        met = {member[n] for n in (region.base(i) for i in node.inputs) if n in member}
        if not met:
            return Refusal(f"{node.name} does not depend on the projections")
        first = min(met)
        member = {n: first if g in met else g for n, g in member.items()}
        member[node.outputs[0]] = first
    groups = []
    for number in sorted(set(member.values())):
        mine = tuple(a for a in anchors if member[a.outputs[0]] == number)
        after = tuple(n for n in epilogue if member[n.outputs[0]] == number)
        widths = {region.value(a.outputs[0]).type.row_width for a in mine}
        if len(mine) > 2 or len(widths) > 1:
            return Refusal("only two projections of equal width can meet in an epilogue")
        made = [n.outputs[0] for n in (*mine, *after)]
        groups.append(
            LinearGroup(
                anchors=mine,
                weights=tuple(region.base(a.inputs[1]) for a in mine),
                epilogue=after,
                outputs=tuple(v for v in made if v in region.outputs),
            )
        )
    k = region.value(x).type.row_width
    return LinearRoles(x=x, k=k, prologue=prologue, groups=tuple(groups))


def row_roles(region: Region) -> RowRoles | Refusal | None:
    """The region as row-wise ops; None when it holds an anchor."""
    if region.with_trait(_ANCHORS):
        return None
    allowed = Trait.ROW_LOCAL | Trait.GATHER | Trait.SELECT | Trait.STATE_WRITE
    for node in region.nodes:
        if not node.op.has(allowed):
            return Refusal(f"{node.op.kind} is not a row-wise op")
    leading = {region.value(n.outputs[0]).type.leading for n in region.nodes if not n.op.has(Trait.STATE_WRITE)}
    if len(leading) > 1:
        return Refusal("token rows and logit rows are different loops")
    return RowRoles(region.nodes)


def attention_roles(region: Region, phase: str) -> AttentionRoles | Refusal | None:
    """The region as attention; None when it holds none."""
    anchors = region.with_trait(Trait.ATTENTION)
    if not anchors:
        return None
    if len(region.with_trait(_ANCHORS)) > 1:
        return Refusal("the projection after attention needs all heads of a row: a kernel boundary is the barrier")
    anchor = anchors[0]
    inserts = region.with_trait(Trait.STATE_WRITE)
    if inserts and phase != "decode":
        return Refusal("in a prefill chunk other rows attend to what this row stores: the insert has to finish first")
    query = _chain(region, anchor.inputs[0])
    keys = tuple(n for i in inserts for name in i.inputs[1:3] for n in _chain(region, name))
    keys = tuple(dict.fromkeys(keys))
    known = {anchor, *inserts, *query, *keys}
    for node in region.nodes:
        if node not in known:
            return Refusal(f"{node.op.kind} after attention belongs to the next kernel")
    for node in (*query, *keys):
        if not node.op.has(Trait.ROW_LOCAL) or len(region.value(node.outputs[0]).type.shape) != 3:
            return Refusal(f"{node.name} does not work on single heads")
        if not region.only_inside(node.outputs[0]):
            return Refusal(f"{node.outputs[0]} is also read outside")
    state = region.base(anchor.inputs[1])
    if inserts and state != inserts[0].outputs[0]:
        return Refusal("attention does not read the cache that is written here")
    return AttentionRoles(anchor, query, inserts[0] if inserts else None, keys)


def _chain(region: Region, name: str) -> tuple[Node, ...]:
    """Nodes of the region that a value depends on, caches left aside."""
    net = region.network
    base = region.base(name)
    if base not in region.made or region.value(base).role is Role.STATE:
        return ()
    last = net.producer[base]
    mask = (net.ancestors[last] | 1 << last) & region.mask
    return tuple(n for i, n in enumerate(net.nodes) if mask >> i & 1)
