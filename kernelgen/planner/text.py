"""Owns the plain text of a plan: what golden files hold and a build keeps beside its sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelgen.ir.graph import Block, Graph
from kernelgen.planner.plan import Fusion, Launch, Plan

_COLUMNS = ("kernel", "family", "bytes", "flops", "us", "limit", "ops")


def plan_text(plan: Plan) -> str:
    """Kernels in order, block by block, each with its tile and what bounds it; then every fusion.

    A block that is placed several times, or that says what an earlier one says, is shown once, and
    so are the tile and limits of a kernel. `limit` is the share of the memory limit: the kernel's
    bytes at the device's read bandwidth over its predicted time. A pair's number is what one
    kernel saves, in bytes.
    """
    bandwidth = plan.floor_bytes / plan.floor_us if plan.floor_us else 0.0
    lines, known = [*_head(plan)], set[str]()
    shown: dict[str, str] = {}
    for block, launches in _blocks(plan):
        title = f"{block.name}{_where(plan.graph, block)}"
        rows = [_row(launch, bandwidth) for launch in launches]
        argument = _argument([f for f in plan.fusions if f.block == block.name])
        content = repr((rows, argument))
        if content in shown:
            lines += ["", f"{title}: as {shown[content]}"]
            continue
        shown[content] = block.name
        lines += ["", title, *_table(launches, rows, known), *argument]
    return "\n".join(lines) + "\n"


def _head(plan: Plan) -> Iterator[str]:
    sizes, total = plan.sizes, sum(launch.price.bytes for launch in plan.launches)
    reached = plan.floor_us / plan.predicted_us if plan.predicted_us else 0.0
    yield (
        f"{plan.graph.name} on {plan.target}, {plan.phase} {plan.size}: {sizes.tokens} tokens,"
        f" {sizes.rows} requests, {sizes.context} cache entries"
    )
    yield (
        f"{plan.launch_count} launches, {total} bytes, predicted {plan.predicted_us:.2f} µs;"
        f" memory limit {plan.floor_us:.2f} µs for {plan.floor_bytes} bytes ({reached:.1%})"
    )
    yield (
        f"workspace {plan.workspace_bytes} bytes, {plan.counters} counters;"
        f" {plan.candidates} candidates"
    )


def _blocks(plan: Plan) -> Iterator[tuple[Block, list[Launch]]]:
    """Each block with the launches of its first placement, in the order of execution."""
    at = 0
    counts: dict[int, int] = {}
    of_block: dict[int, list[Launch]] = {}
    for placement in plan.graph.sequence:
        block = plan.graph.blocks[placement.block]
        if placement.block not in of_block:
            of_block[placement.block] = _while_in(block, plan.launches, at)
            counts[placement.block] = len(of_block[placement.block])
        at += counts[placement.block]
    for index, launches in of_block.items():
        yield plan.graph.blocks[index], launches


def _while_in(block: Block, launches: Sequence[Launch], at: int) -> list[Launch]:
    """Launches from `at` on that compute one placement of the block."""
    found: list[Launch] = []
    seen: set[str] = set()
    for launch in launches[at:]:
        if launch.kernel.match.region.network.block is not block or seen & set(launch.kernel.ops):
            break
        seen.update(launch.kernel.ops)
        found.append(launch)
    return found


def _where(graph: Graph, block: Block) -> str:
    layers = [p.layer for p in graph.sequence if graph.blocks[p.block] is block]
    told = [str(layer) for layer in layers if layer is not None]
    return f" (layers {', '.join(told)})" if told else ""


def _table(
    launches: Sequence[Launch], rows: Sequence[tuple[str, ...]], known: set[str]
) -> Iterator[str]:
    """Aligned rows; below each kernel not yet in `known` its details."""
    table = [_COLUMNS, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(_COLUMNS))]
    for number, row in enumerate(table):
        cells = [
            cell.rjust(width) if 2 <= i <= 5 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"  {'  '.join(cells).rstrip()}"
        launch = launches[number - 1] if number else None
        if launch and launch.kernel.name not in known:
            known.add(launch.kernel.name)
            yield from _details(launch)


def _row(launch: Launch, bandwidth: float) -> tuple[str, ...]:
    price, match = launch.price, launch.kernel.match
    share = price.bytes / bandwidth / price.us if bandwidth and price.us else 0.0
    return (
        launch.kernel.name,
        match.family.name,
        str(price.bytes),
        str(price.flops),
        f"{price.us:.2f}",
        f"{share:.1%}",
        " ".join(launch.kernel.ops),
    )


def _details(launch: Launch) -> Iterator[str]:
    """The tile, the limits in words, and later passes."""
    price = launch.price
    tile = ", ".join(f"{name} {value}" for name, value in price.choice.items())
    parts = [part for part in (tile, *price.limits) if part]
    if parts:
        yield f"    {price.verdict}: {'; '.join(parts)}"
    for later in price.passes:
        yield f"    then {later.name}: {later.bytes} bytes, {later.us:.2f} µs; {later.why}"


def _argument(fusions: Sequence[Fusion]) -> list[str]:
    """Fusions by rule and reason, those taken first: pairs with the bytes that one kernel saves."""
    groups: dict[tuple[bool, str, str], list[str]] = {}
    for fusion in sorted(fusions, key=lambda f: not f.taken):
        pair = f"{fusion.a} | {fusion.b} ({fusion.bytes_saved})"
        groups.setdefault((fusion.taken, fusion.rule, fusion.reason), []).append(pair)
    return [
        f"  {'+' if taken else '-'} {rule}: {', '.join(pairs)}: {reason}"
        for (taken, rule, reason), pairs in groups.items()
    ]
