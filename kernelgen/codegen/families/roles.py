"""Owns the shapes of kernels that backends share: anchor, prologue, epilogue, refusals."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.ir.graph import Node, Role
from kernelgen.ir.op import Trait
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region, bits

APART = Trait.SCAN | Trait.LATENT | Trait.HEAD_PRODUCT
"""anchors that share a kernel with row-wise ops alone"""
ANCHORS = Trait.MATMUL | Trait.ATTENTION | Trait.SAMPLE | Trait.ROUTE | Trait.EXPERTS | APART


@dataclass(frozen=True)
class LinearGroup:
    """Projections whose results are finished together: one, or two that meet (gate and up)."""

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
    keeps: bool = False
    """whether the prepared row is stored too, for others to read"""


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


@dataclass(frozen=True)
class HeadRoles:
    """The projection to the vocabulary with the choice among its columns."""

    linear: LinearRoles
    sample: Node


def linear_roles(region: Region, *, keeps: bool = False) -> LinearRoles | Refusal | None:
    """The region as projections of one row; None when it holds none.

    `keeps`: whether the kernel can also store the row that it prepares.
    """
    anchors = region.with_trait(Trait.MATMUL)
    if not anchors:
        return None
    others = [n for n in region.with_trait(ANCHORS) if n not in anchors]
    if others:
        return _two_anchors(region, anchors[0], others[0])
    x = anchors[0].inputs[0]
    for later in anchors:
        if later.inputs[0] != x:
            return _second_product(region, later, anchors)
    prologue, epilogue = _around(region, anchors)
    return (
        _two_formats(region, anchors)
        or _bad_prologue(region, x, prologue, keeps)
        or _bad_epilogue(region, epilogue)
        or _grouped(region, x, anchors, prologue, epilogue)
    )


def head_roles(region: Region) -> HeadRoles | Refusal | None:
    """The region as projection, epilogue and choice; None unless it holds a projection and a
    choice.
    """
    samples, anchors = region.with_trait(Trait.SAMPLE), region.with_trait(Trait.MATMUL)
    if not samples or not anchors:
        return None
    if len(samples) > 1 or len(anchors) > 1:
        return Refusal("one product and one choice make a head")
    net, sample = region.network, samples[0]
    linear = linear_roles(Region(net, region.mask & ~(1 << net.producer[sample.outputs[0]])))
    if not isinstance(linear, LinearRoles):
        return linear
    if region.base(sample.inputs[0]) not in linear.groups[0].outputs:
        return Refusal(f"{sample.name} does not choose among the columns of {anchors[0].name}")
    return HeadRoles(linear, sample)


def _two_anchors(region: Region, product: Node, other: Node) -> Refusal:
    """Why a product and attention, or a product and the choice, are two kernels."""
    width = region.value(product.outputs[0]).type.row_width
    if other.op.has(Trait.ATTENTION) and _reaches(region, other, product):
        heads = region.value(other.outputs[0]).type
        columns = f"{heads.static_elements} columns of {other.name}"
        text = f"{product.name} sums over all {columns}, which are finished head by head"
    elif other.op.has(Trait.ATTENTION):
        head = region.value(other.outputs[0]).type.row_width
        tiles = f"{product.name} finishes its {width} columns tile by tile"
        text = f"{other.name} reads whole heads of {head} columns, {tiles}"
    elif other.op.has(APART):
        text = f"{other.name} works head by head or token by token, {product.name} tile by tile"
    elif other.op.has(Trait.EXPERTS):
        text = f"{other.name} reads the matrices of chosen experts, {product.name} one for all rows"
    elif other.op.has(Trait.ROUTE) and not _reaches(region, product, other):
        text = f"{product.name} does not wait for {other.name}"
    else:
        columns = f"{width} columns of {product.name}"
        text = f"{other.name} chooses among all {columns}, which are finished tile by tile"
    return Refusal(text, barrier=True)


def _two_formats(region: Region, anchors: tuple[Node, ...]) -> Refusal | None:
    """A kernel reads its matrices in one way."""
    first, *others = ((a, region.value(a.inputs[1]).type.dtype) for a in anchors)
    for node, dtype in others:
        if dtype != first[1]:
            return Refusal(
                f"{first[0].name} multiplies {first[1]}, {node.name} {dtype}: two ways to read"
            )
    return None


def _second_product(region: Region, later: Node, anchors: tuple[Node, ...]) -> Refusal:
    """Why two products with different inputs are two kernels."""
    k = region.value(later.inputs[0]).type.row_width
    source = next((a for a in anchors if _reaches(region, a, later)), None)
    if source is None:
        return Refusal(f"{anchors[0].name} and {later.name} multiply different rows")
    columns = f"{k} columns that come from {source.name}"
    text = f"{later.name} sums over all {columns}, which are finished tile by tile"
    return Refusal(text, barrier=True)


def _reaches(region: Region, first: Node, then: Node) -> bool:
    net = region.network
    return bool(net.ancestors[net.producer[then.outputs[0]]] >> net.producer[first.outputs[0]] & 1)


def _around(region: Region, anchors: tuple[Node, ...]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Nodes before the anchors, and the rest."""
    net = region.network
    before = 0
    for anchor in anchors:
        before |= net.ancestors[net.producer[anchor.outputs[0]]]
    rest = [n for n in region.nodes if n not in anchors]
    early = [n for n in rest if before >> net.producer[n.outputs[0]] & 1]
    return tuple(early), tuple(n for n in rest if n not in early)


def _bad_prologue(
    region: Region, x: str, prologue: tuple[Node, ...], keeps: bool
) -> Refusal | None:
    allowed = Trait.POINTWISE | Trait.ROW_REDUCE | Trait.SELECT
    for node in prologue:
        if not node.op.has(allowed):
            return Refusal(f"{node.op.kind} cannot prepare the row of a projection")
        out = node.outputs[0]
        if not region.only_inside(out) and not (keeps and out == x):
            readers = _outside_readers(region, out)
            why = "every tile of the product would compute it, storing it once is cheaper"
            return Refusal(f"{out} is also read by {readers}: {why}")
        type_ = region.value(out).type
        if len(type_.shape) != 2:
            return Refusal(f"{out} is not a plain row")
        if type_.leading is not region.value(x).type.leading:
            return Refusal("token rows and logit rows are different loops")
    return None


def _outside_readers(region: Region, name: str) -> str:
    net = region.network
    readers = [net.nodes[i].name for i in bits(net.readers.get(name, 0) & ~region.mask)]
    if name in net.result_bases:
        readers.append("the next block")
    return " and ".join(readers[:2])


def _bad_epilogue(region: Region, epilogue: tuple[Node, ...]) -> Refusal | None:
    for node in epilogue:
        type_ = region.value(node.inputs[0]).type
        if node.op.has(Trait.ROW_REDUCE):
            columns = f"{type_.row_width} columns of a row"
            text = f"{node.name} needs all {columns}, which the product finishes tile by tile"
            return Refusal(text, barrier=True)
        if not node.op.has(Trait.POINTWISE):
            text = f"{node.name} needs whole rows, which the product finishes tile by tile"
            return Refusal(text, barrier=True)
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
    kept = bool(prologue) and not region.only_inside(x)
    return LinearRoles(x=x, k=k, prologue=prologue, groups=tuple(groups), keeps=kept)


def row_roles(region: Region, *, side_by_side: bool = False) -> RowRoles | Refusal | None:
    """The region as row-wise ops; None when it holds an anchor.

    `side_by_side` also takes ops that share no row, such as the rotations of queries and keys.
    """
    if region.with_trait(ANCHORS):
        return None
    allowed = Trait.ROW_LOCAL | Trait.GATHER | Trait.SELECT | Trait.STATE_WRITE | Trait.EXPERT_SUM
    for node in region.nodes:
        if not node.op.has(allowed):
            return Refusal(f"{node.op.kind} is not a row-wise op")
    leading = {
        region.value(n.outputs[0]).type.leading
        for n in region.nodes
        if not n.op.has(Trait.STATE_WRITE)
    }
    if len(leading) > 1:
        return Refusal("token rows and logit rows are different loops")
    if not side_by_side and not region.network.connected(region.mask):
        return Refusal("the two share no row")
    return RowRoles(region.nodes)


def attention_roles(region: Region, phase: str) -> AttentionRoles | Refusal | None:
    """The region as attention; None when it holds none."""
    anchors = region.with_trait(Trait.ATTENTION)
    if not anchors:
        return None
    others = [n for n in region.with_trait(ANCHORS) if n is not anchors[0]]
    anchor = anchors[0]
    if others:
        return _two_anchors(region, others[0], anchor)
    inserts = region.with_trait(Trait.STATE_WRITE)
    if inserts and phase != "decode":
        first = f"all of {inserts[0].name} comes first"
        text = f"in a prompt other rows attend to what a row stores, so {first}"
        return Refusal(text, barrier=True)
    query = _chain(region, anchor.inputs[0])
    keys = tuple(n for i in inserts for name in i.inputs[1:3] for n in _chain(region, name))
    keys = tuple(dict.fromkeys(keys))
    known = {anchor.name, *(n.name for n in (*inserts, *query, *keys))}
    for node in region.nodes:
        if node.name not in known:
            after = _reaches(region, anchor, node)
            why = (
                "belongs to the next kernel" if after else "makes nothing that attention reads here"
            )
            return Refusal(f"{node.name} {why}")
    for node in (*query, *keys):
        if not node.op.has(Trait.ROW_LOCAL) or len(region.value(node.outputs[0]).type.shape) != 3:
            return Refusal(f"{node.name} does not work on single heads")
        if not region.only_inside(node.outputs[0]):
            readers = _outside_readers(region, node.outputs[0])
            return Refusal(f"{node.outputs[0]} is also read by {readers}")
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
