"""Owns the shape of a delta-rule step in one kernel: convolutions before it, heads after it."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.codegen.families.roles import ANCHORS
from kernelgen.ir.graph import Node
from kernelgen.ir.op import Trait
from kernelgen.ops import DeltaScan, ShortConv
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region

_READ = 3
"""inputs of a scan that may be made before it: queries, keys and values"""


@dataclass(frozen=True)
class DeltaRoles:
    """One scan with what makes its queries, keys and values and what finishes its heads."""

    anchor: Node
    before: tuple[Node, ...]
    """convolutions and element-wise ops"""
    epilogue: tuple[Node, ...]
    output: str

    @property
    def whole_heads(self) -> bool:
        """Whether a block has to take all columns of a head: it keeps windows that others would
        read, or sums over the head."""
        convs = any(isinstance(n.op, ShortConv) for n in self.before)
        return convs or any(n.op.has(Trait.ROW_REDUCE) for n in self.epilogue)


def delta_roles(region: Region) -> DeltaRoles | Refusal | None:
    """The region as one delta scan with its surroundings; None where it holds no delta scan."""
    scans = [n for n in region.with_trait(Trait.SCAN) if isinstance(n.op, DeltaScan)]
    if not scans:
        return None
    anchor = scans[0]
    others = [
        n for n in region.with_trait(ANCHORS) if n is not anchor and not isinstance(n.op, ShortConv)
    ]
    if others:
        if others[0].op.has(Trait.MATMUL):
            return None  # the family of products says why
        return Refusal(f"{anchor.name} and {others[0].name} walk their rows in different ways")
    net = region.network
    early = net.ancestors[net.producer[anchor.outputs[0]]]
    rest = [n for n in region.nodes if n is not anchor]
    before = tuple(n for n in rest if early >> net.producer[n.outputs[0]] & 1)
    epilogue = tuple(n for n in rest if n not in before)
    refusal = _bad_before(region, anchor, before) or _bad_epilogue(region, anchor, epilogue)
    if refusal:
        return refusal
    outputs = [n.outputs[0] for n in (anchor, *epilogue) if n.outputs[0] in region.outputs]
    last = (anchor, *epilogue)[-1].outputs[0]
    if outputs != [last]:
        return Refusal(f"{outputs[0] if outputs else last} is read elsewhere, too")
    return DeltaRoles(anchor, before, epilogue, last)


def _bad_before(region: Region, anchor: Node, before: tuple[Node, ...]) -> Refusal | None:
    read = {region.base(name) for name in anchor.inputs[:_READ]}
    for node in reversed(before):
        out = node.outputs[0]
        if out not in read:
            return Refusal(f"{node.name} makes no queries, keys or values of {anchor.name}")
        if not region.only_inside(out):
            return Refusal(f"{out} is read elsewhere, too")
        if isinstance(node.op, ShortConv):
            if region.base(node.inputs[0]) in region.made:
                return Refusal(f"{node.name} keeps rows that have to be stored first")
            continue
        shapes = {region.value(name).type.shape for name in (*node.inputs, out)}
        if not node.op.has(Trait.POINTWISE) or len(shapes) > 1:
            return Refusal(f"{node.name} needs more than one element of a row")
        read |= {region.base(name) for name in node.inputs}
    return None


def _bad_epilogue(region: Region, anchor: Node, epilogue: tuple[Node, ...]) -> Refusal | None:
    made = {anchor.outputs[0]}
    for node in epilogue:
        if not any(region.base(i) in made for i in node.inputs):
            return Refusal(f"{node.name} does not depend on {anchor.name}")
        if not node.op.has(Trait.POINTWISE | Trait.ROW_REDUCE):
            return Refusal(f"{node.name} needs more than what {anchor.name} has just made")
        if len(region.value(node.outputs[0]).type.shape) != 3:
            return Refusal(f"{node.name} does not work on single heads")
        made |= set(node.outputs)
    return None
