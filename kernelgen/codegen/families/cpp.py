"""Owns the C++ families of the CPU target: what each covers, its layouts, scratch and cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kernelgen.codegen.families.expert_roles import ExpertRoles, expert_roles, route_roles
from kernelgen.codegen.families.roles import (
    AttentionRoles,
    LinearRoles,
    attention_roles,
    linear_roles,
    row_roles,
)
from kernelgen.codegen.families.scan_roles import alone_roles, conv_roles, head_scan_roles
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.formats import WeightFormat
from kernelgen.formats.device import padded_k
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Node
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.ops import DeltaScan, HeadLinear, LatentAttention, ShortConv
from kernelgen.planner.cost import region_bytes, region_flops, time_us
from kernelgen.planner.family import Catalogue, Match, Price, Refusal
from kernelgen.planner.network import Region
from kernelgen.planner.variant import variant_text

PANEL = 32
"""outputs that lie beside each other in a packed weight, and lanes of an accumulator tile"""


@dataclass(frozen=True)
class CppFamily:
    """One C++ template. All of them handle any number of rows, so their text does not depend on
    the size."""

    name: str
    roles: Callable[[Region, str], Any]
    layouts: Callable[[Any], dict[str, str]]
    scratch_bytes: Callable[[Region, Any, Sizes], int]
    backend: str = "cpp"
    varies: str = ""
    """never: each row is added up by itself, in steps that its own length decides"""

    def match(self, region: Region, phase: str) -> Match | Refusal | None:
        """The region as one kernel of this template."""
        roles = self.roles(region, phase)
        if roles is None or isinstance(roles, Refusal):
            return roles
        return Match(self, region, roles, variant_text(region), self.layouts(roles))

    def price(self, match: Match, sizes: Sizes, device: Device) -> Price:
        """The memory or arithmetic limit of two threads, and one barrier."""
        moved, flops = region_bytes(match.region, sizes), region_flops(match.region, sizes)
        busy = time_us(moved, flops, device, _math_dtype(match.region))
        return Price(
            bytes=moved,
            flops=flops,
            us=busy + device.boundary_us,
            choice={},
            verdict="modelled",
            scratch_bytes=self.scratch_bytes(match.region, match.roles, sizes),
            limits=(
                "memory"
                if moved / device.read_gb_s
                > flops / device.tflops_for(_math_dtype(match.region)) / 1e3
                else "arithmetic",
            ),
        )


@dataclass(frozen=True)
class ExpertPairsFamily(CppFamily):
    """Pair by pair: the weights of an expert are read as often as it is chosen."""

    def price(self, match: Match, sizes: Sizes, device: Device) -> Price:
        """Memory for every pair, or arithmetic; one barrier."""
        price = super().price(match, sizes, device)
        again = sum(_read_again(match.region, node, sizes) for node in match.roles.anchors)
        busy = time_us(price.bytes + again, price.flops, device, _math_dtype(match.region))
        return replace(price, us=busy + device.boundary_us)


@dataclass(frozen=True)
class SortedExpertsFamily(CppFamily):
    """All pairs of an expert together, once they are sorted."""

    def price(self, match: Match, sizes: Sizes, device: Device) -> Price:
        """What everything costs, a second barrier, and rows that are written once and read once."""
        price = super().price(match, sizes, device)
        rows = 2 * self.scratch_bytes(match.region, match.roles, sizes)
        return replace(
            price, us=price.us + device.boundary_us + time_us(rows, 0, device, "float32")
        )


def _read_again(region: Region, node: Node, sizes: Sizes) -> int:
    """Bytes of weights that are read for pairs beyond the first of each expert."""
    types = region.network.block.input_types(node)
    each = types[1].size_bytes(sizes) // sizes.of(types[1].shape[0])
    return max(0, types[2].elements(sizes) * each - node.op.read_bytes(1, types, sizes))


def _math_dtype(region: Region) -> str:
    """What the inner products multiply: bfloat16 only where both sides are, or are made so."""
    for node in region.with_trait(Trait.MATMUL | Trait.EXPERTS):
        types = [t.dtype for t in region.network.block.input_types(node)[:2]]
        narrow = all(t == BFLOAT16 or isinstance(t, WeightFormat) for t in types)
        return "bfloat16" if narrow and types[0] == BFLOAT16 else "float32"
    return "float32"


def _linear_layouts(roles: LinearRoles) -> dict[str, str]:
    return {weight: "panel" for group in roles.groups for weight in group.weights}


def _linear_scratch(region: Region, roles: LinearRoles, sizes: Sizes) -> int:
    """Prepared activation rows: float32 at most, an odd number of cache lines each
    (lib/linear.h)."""
    x = region.value(roles.x).type
    rows = x.elements(sizes.capacity) // x.row_width
    kind = region.value(roles.groups[0].weights[0]).type.dtype
    k = padded_k(kind, roles.k) if isinstance(kind, WeightFormat) else roles.k + roles.k % 2
    lines = -(-4 * k // 64) | 1
    return rows * lines * 64


def _no_scratch(region: Region, roles: Any, sizes: Sizes) -> int:
    return 0


def _no_layouts(roles: Any) -> dict[str, str]:
    return {}


def _attention(region: Region, phase: str) -> AttentionRoles | Refusal | None:
    return attention_roles(region, phase)


def _sample(region: Region, phase: str) -> Region | Refusal | None:
    if not region.with_trait(Trait.SAMPLE):
        return None
    if len(region.nodes) > 1:
        return Refusal("the choice needs the whole vocabulary: a kernel boundary is the barrier")
    return region


def _sample_scratch(region: Region, roles: Any, sizes: Sizes) -> int:
    """The best candidate (8 bytes) of each piece of 2048 logits (lib/sample.h)."""
    logits = region.network.block.input_types(region.nodes[0])[0]
    return sizes.capacity.rows * -(-logits.row_width // 2048) * 8


def _expert_layouts(roles: ExpertRoles) -> dict[str, str]:
    return {stack: "panel" for stack in roles.stacks}


def _sorted_scratch(region: Region, roles: ExpertRoles, sizes: Sizes) -> int:
    """Prepared rows of all pairs, then the pair of each (lib/experts.h)."""
    k = region.value(roles.anchors[0].inputs[0]).type.row_width
    pairs = region.value(roles.ids).type.elements(sizes.capacity)
    kind = region.value(roles.stacks[0]).type.dtype
    k = padded_k(kind, k) if isinstance(kind, WeightFormat) else k + k % 2
    lines = -(-4 * k // 64) | 1
    return pairs * lines * 64 + -(-4 * pairs // 64) * 64


CPP_FAMILIES: Catalogue = (
    CppFamily("route", lambda r, _: route_roles(r), _no_layouts, _no_scratch),
    ExpertPairsFamily(
        "experts_pairs", lambda r, _: expert_roles(r, sums=True), _expert_layouts, _no_scratch
    ),
    SortedExpertsFamily(
        "experts_sorted", lambda r, _: expert_roles(r, sums=False), _expert_layouts, _sorted_scratch
    ),
    CppFamily("short_conv", lambda r, _: conv_roles(r, ShortConv), _no_layouts, _no_scratch),
    CppFamily("delta_scan", lambda r, _: head_scan_roles(r, DeltaScan), _no_layouts, _no_scratch),
    CppFamily(
        "latent_attention",
        lambda r, _: alone_roles(r, LatentAttention, Trait.LATENT),
        _no_layouts,
        _no_scratch,
    ),
    CppFamily(
        "head_linear",
        lambda r, _: alone_roles(r, HeadLinear, Trait.HEAD_PRODUCT),
        _no_layouts,
        _no_scratch,
    ),
    CppFamily("linear", lambda r, _: linear_roles(r), _linear_layouts, _linear_scratch),
    CppFamily("attention", _attention, _no_layouts, _no_scratch),
    CppFamily("sample", _sample, _no_layouts, _sample_scratch),
    CppFamily("rows", lambda r, _: row_roles(r), _no_layouts, _no_scratch),
)
