"""Owns the argument of a plan: why neighbouring ops share a kernel or do not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from kernelgen.hw.device import Device
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.planner.family import Refusal
from kernelgen.planner.network import bits
from kernelgen.planner.plan import Fusion
from kernelgen.planner.rules import rule_for
from kernelgen.planner.search import BlockSearch, Cut, Solution


def fusions(
    search: BlockSearch, solution: Solution, sizes: Sizes, device: Device, times: int
) -> Iterator[Fusion]:
    """One entry for each edge between ops and for each pair of projections with one input."""
    owner: dict[int, int] = {}
    for cut in solution.cuts:
        for i in bits(cut.match.region.mask):
            owner[i] = cut.match.region.mask
    prices = {cut.match.region.mask: cut for cut in solution.cuts}
    nodes = solution.network.nodes
    for a, b, shared in _pairs(solution):
        taken = owner[a] == owner[b]
        rule = rule_for(nodes[a].op, nodes[b].op)
        saved = _edge_bytes(solution, a, b, shared, sizes)
        reason = rule.text if taken else _why_not(search, (a, b), owner, prices, sizes, device)
        yield Fusion(
            a=nodes[a].name,
            b=nodes[b].name,
            block=search.block.name,
            rule=rule.name,
            taken=taken,
            reason=reason,
            bytes_saved=saved,
            launches_saved=1,
            times=times,
        )


def _pairs(solution: Solution) -> Iterator[tuple[int, int, str]]:
    """(first, second, value between or shared): edges, then horizontal pairs."""
    net = solution.network
    for b, names in enumerate(net.reads):
        for name in names:
            if name in net.producer:
                yield net.producer[name], b, name
    for name, mask in net.readers.items():
        projections = [i for i in bits(mask) if net.nodes[i].op.has(Trait.MATMUL)]
        for a, b in pairwise(projections):
            yield a, b, name


def _edge_bytes(solution: Solution, a: int, b: int, name: str, sizes: Sizes) -> int:
    """What one kernel instead of two does not move: a value written and read, or read twice."""
    net = solution.network
    block, node = net.block, net.nodes[b]
    types = block.input_types(node)
    read = max(
        node.op.read_bytes(i, types, sizes)
        for i, n in enumerate(node.inputs)
        if net.access[n].base == name
    )
    if net.producer.get(name) != a:
        return read
    written = net.nodes[a].op.write_bytes(block.input_types(net.nodes[a]), sizes)
    if net.nodes[a].op.has(Trait.STATE_WRITE):
        return written  # the rows just stored are not read back; the rest of the cache is
    return read + (0 if name in net.result_bases else written)


def _why_not(
    search: BlockSearch,
    pair: tuple[int, int],
    owner: dict[int, int],
    prices: dict[int, Cut],
    sizes: Sizes,
    device: Device,
) -> str:
    """Why the kernels of two ops are not one: in time if they could be, else what forbids the
    smallest part of it.
    """
    if not search.fusion:
        return "fusion is switched off"
    (a, b), (left, right) = pair, (owner[pair[0]], owner[pair[1]])
    union = left | right
    if search.network.convex(union) and search.match(union):
        return _slower(search.price(union, sizes, device), (prices[left], prices[right]), device)
    for mask in (1 << a | 1 << b, left | 1 << b, 1 << a | right, union):
        if search.network.convex(mask) and not search.match(mask):
            return _told(search.refusal(mask), device)
    return "another kernel has to run between them"


def _slower(one: Cut | Refusal, two: tuple[Cut, Cut], device: Device) -> str:
    """A legal kernel against the two that won."""
    if isinstance(one, Refusal):
        return _told(one, device)
    apart = sum(cut.price.us for cut in two)
    text = f"legal, but {one.price.us:.2f} µs in one kernel against {apart:.2f} µs in two"
    among = one.price.among_us - sum(cut.price.among_us for cut in two)
    if one.price.us + among < apart < one.price.cost_us:
        text += ", which is no more than modelled times err"
    elif among > 0 and one.price.us < apart:
        text += f", which lose {among:.2f} µs less among other kernels"
    return f"{text} ({_limit(one)} against {' and '.join(_limit(cut) for cut in two)})"


def _told(refusal: Refusal, device: Device) -> str:
    """A refusal with the cost of the boundary that it asks for."""
    if not refusal.barrier:
        return refusal.reason
    return f"{refusal.reason}: a kernel boundary ({device.boundary_us:g} µs) is the barrier"


def _limit(cut: Cut) -> str:
    """What bounds a kernel most, in the words of its family."""
    return f"{cut.match.family.name}: {next(iter(cut.price.limits), 'no limit told')}"
