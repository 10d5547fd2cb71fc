"""Owns the cache schema: groups of layers that share one pool of pages, and places in a page."""

from __future__ import annotations

from dataclasses import dataclass

from kernelgen.spec.model import CacheSpec

PAGE_TOKENS = 16


@dataclass(frozen=True)
class LayerPlace:
    """Where a layer's keys and values lie: which group's block table, and the byte in a page."""

    group: int
    offset_bytes: int


@dataclass(frozen=True)
class CacheGroup:
    """Layers that keep the same tokens, at most `places` of them in one page."""

    name: str
    window: int | None
    layers: tuple[int, ...]


@dataclass(frozen=True)
class CacheSchema:
    """What the runtime allocates and what kernels address; both read it from here."""

    page_bytes: int
    groups: tuple[CacheGroup, ...]
    places: dict[int, LayerPlace]


def layer_bytes(spec: CacheSpec) -> int:
    """Bytes of one page of one layer: keys and values of 16 tokens, to whole cache lines."""
    size = PAGE_TOKENS * 2 * spec.kv_heads * spec.head_dim * spec.dtype.bits // 8
    return -(-size // 64) * 64


def cache_schema(layers: tuple[tuple[int, CacheSpec], ...]) -> CacheSchema:
    """Group layers of equal spec so that every page holds about the same number of them.

    Group size is the smallest bucket, unless the largest is less than half as big again: then the
    largest, and the shorter group leaves places unused (the rule that hybrid engines settled on).
    A layer that shares another one's keys and values has that one's place, no bytes of its own.
    """
    shared = {layer: spec.kv_share_with for layer, spec in layers if spec.kv_share_with is not None}
    layers = tuple((layer, spec) for layer, spec in layers if layer not in shared)
    buckets: dict[CacheSpec, list[int]] = {}
    for layer, spec in layers:
        buckets.setdefault(spec, []).append(layer)
    counts = [len(b) for b in buckets.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    page_bytes = max(size * layer_bytes(spec) for spec in buckets)
    groups: list[CacheGroup] = []
    places: dict[int, LayerPlace] = {}
    for spec, members in buckets.items():
        kind = "full" if spec.window is None else f"window{spec.window}"
        for part, start in enumerate(range(0, len(members), size)):
            mine = tuple(members[start : start + size])
            for place, layer in enumerate(mine):
                places[layer] = LayerPlace(len(groups), place * layer_bytes(spec))
            groups.append(CacheGroup(f"{kind}_{part}", spec.window, mine))
    places |= {layer: places[owner] for layer, owner in shared.items()}
    return CacheSchema(page_bytes, _distinct(groups), places)


def _distinct(groups: list[CacheGroup]) -> tuple[CacheGroup, ...]:
    """Group names become field names of the step's arguments: each one once."""
    found: list[CacheGroup] = []
    for group in groups:
        taken = {g.name for g in found}
        name, count = group.name, 1
        while name in taken:
            count += 1
            name = f"{group.name}_{count}"
        found.append(CacheGroup(name, group.window, group.layers))
    return tuple(found)
