"""Owns the cache that a kernel is tried on: dense keys and values, the same in a pool of pages."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.ops.step import DenseCache
from kernelgen.verify.arguments import Ints, Tables
from kernelgen.verify.built import Group
from kernelgen.verify.guarded import POISON
from kernelgen.verify.layouts import PAGE_TOKENS, PagePart
from kernelgen.verify.scenario import Scenario
from kernelgen.verify.tensors import Generator, Tensor


@dataclass(frozen=True)
class CachePlace:
    """Where one layer's keys and values lie: its group's table and its part of each page."""

    layer: int
    group: Group
    part: PagePart

    def where(self, table: Ints, row: int, positions: range) -> tuple[Tensor, Tensor]:
        """Page and place in the page of positions of a request row."""
        import torch

        at = torch.arange(positions.start, positions.stop)
        pages = torch.from_numpy(table[row].astype("int64"))
        return pages[at // PAGE_TOKENS], at % PAGE_TOKENS


def seen(scenario: Scenario, row: int, window: int | None, *, new: bool) -> range:
    """Positions whose keys exist before the kernel and are read by some new token of the row.

    `new`: whether the step's own tokens have been stored already.
    """
    request = scenario.requests[row]
    if request.padding:
        return range(0)
    first = max(0, request.history - window + 1) if window else 0
    return range(first, request.length if new else request.history)


def dense_cache(
    scenario: Scenario, place: CachePlace, *, new: bool, generator: Generator
) -> DenseCache:
    """Random keys and values where `seen`, NaN elsewhere, in the cache's dtype."""
    import torch

    part = place.part
    kind = getattr(torch, part.dtype.torch)
    made: tuple[list[Tensor], list[Tensor]] = ([], [])
    for row, request in enumerate(scenario.requests):
        span = seen(scenario, row, place.group.window, new=new)
        for side in made:
            dense = torch.full((request.length, part.kv_heads, part.head_dim), float("nan"))
            shape = (len(span), part.kv_heads, part.head_dim)
            dense[span.start : span.stop] = torch.randn(shape, generator=generator)
            side.append(dense.to(kind))
    return DenseCache(*made)


def filled_pool(
    pool: Tensor, scenario: Scenario, place: CachePlace, tables: Tables, cache: DenseCache
) -> None:
    """Fills `pool [pages, page_bytes]`: what the cache holds at its pages, all else poison.

    Page 0 is zeros. Poison are other layers, unused pages, and tokens that nobody may read.
    """
    pool.fill_(POISON)
    pool[0] = 0
    write_layer(pool, scenario, place, tables, cache)


def write_layer(
    pool: Tensor, scenario: Scenario, place: CachePlace, tables: Tables, cache: DenseCache
) -> None:
    """Puts what a layer's cache holds to its pages; NaN is what nobody may read, and left out."""
    import torch

    table = tables.entries[place.group.name]
    for row in range(len(scenario.requests)):
        keys, values = cache.keys[row], cache.values[row]
        known = torch.nonzero(~torch.isnan(keys.float()).flatten(1).any(1)).flatten()
        if not len(known):
            continue
        span = range(int(known[0]), int(known[-1]) + 1)
        pages, at = place.where(table, row, span)
        cut = slice(span.start, span.stop)
        place.part.write(pool, pages, at, keys[cut], values[cut])
