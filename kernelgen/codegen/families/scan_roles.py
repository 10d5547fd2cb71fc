"""Owns the shapes of kernels that take row-wise ops alone: scans, latents, heads' products."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.codegen.families.roles import ANCHORS
from kernelgen.ir.graph import Node, Role
from kernelgen.ir.op import Trait
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import Region


@dataclass(frozen=True)
class ApartRoles:
    """One anchor and what finishes its rows."""

    anchor: Node
    epilogue: tuple[Node, ...]
    outputs: tuple[str, ...]
    """values stored; states are not among them"""


def carried(region: Region) -> frozenset[str]:
    """States of the region that belong to requests and not to tokens: what its scans carry on."""
    scans = region.with_trait(Trait.SCAN)
    names = {region.base(name) for node in scans for name in node.inputs}
    return frozenset(n for n in names if region.value(n).role is Role.STATE)


def apart_roles(
    region: Region, kind: type, trait: Trait, finishes: Trait
) -> ApartRoles | Refusal | None:
    """The region as one op of `kind`, finished by ops with the traits `finishes`; None where it
    holds no such op."""
    anchors = [n for n in region.with_trait(trait) if isinstance(n.op, kind)]
    if not anchors:
        return None
    anchor, *others = [*anchors, *(n for n in region.with_trait(ANCHORS) if n not in anchors)]
    if others:
        if others[0].op.has(Trait.MATMUL):
            return None  # the family of products says why
        return Refusal(f"{anchor.name} and {others[0].name} walk their rows in different ways")
    made = {anchor.outputs[0]}
    epilogue = [n for n in region.nodes if n is not anchor]
    for node in epilogue:
        inputs = [region.base(i) for i in node.inputs]
        if not any(i in made for i in inputs):
            return Refusal(f"{node.name} prepares what {anchor.name} reads, in another kernel")
        if not node.op.has(finishes):
            return Refusal(f"{node.name} needs more than what {anchor.name} has just made")
        made |= set(node.outputs)
    finished = [n.outputs[0] for n in (anchor, *epilogue)]
    outputs = tuple(v for v in finished if v in region.outputs)
    if len(outputs) != 1 or outputs[0] != finished[-1]:
        return Refusal(f"{outputs[0] if outputs else anchor.outputs[0]} is read elsewhere, too")
    return ApartRoles(anchor, tuple(epilogue), outputs)


def conv_roles(region: Region, kind: type) -> ApartRoles | Refusal | None:
    """A scan whose columns have nothing to do with each other: element by element."""
    roles = apart_roles(region, kind, Trait.SCAN, Trait.POINTWISE)
    if not isinstance(roles, ApartRoles):
        return roles
    shape = region.value(roles.anchor.outputs[0]).type.shape
    for node in roles.epilogue:
        shapes = [region.value(name).type.shape for name in node.inputs]
        if any(s not in (shape, shape[-1:]) for s in shapes):
            return Refusal(f"{node.name} reads rows of another shape")
    return roles


def head_scan_roles(region: Region, kind: type) -> ApartRoles | Refusal | None:
    """A scan that finishes a head at a time: row-wise ops on heads."""
    roles = apart_roles(region, kind, Trait.SCAN, Trait.POINTWISE | Trait.ROW_REDUCE)
    if not isinstance(roles, ApartRoles):
        return roles
    for node in roles.epilogue:
        if len(region.value(node.outputs[0]).type.shape) != 3:
            return Refusal(f"{node.name} does not work on single heads")
    return roles


def alone_roles(region: Region, kind: type, trait: Trait) -> ApartRoles | Refusal | None:
    """An op that nothing is fused with."""
    return apart_roles(region, kind, trait, Trait(0))
