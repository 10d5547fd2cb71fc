"""Owns the cache schema: groups of layers that share a pool of pages, and places in a page."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernelgen.spec.model import KeptSpec

PAGE_TOKENS = 16


STATES = "states"
"""name of the group whose pages are not of tokens but of requests"""
_LINE = 64


@dataclass(frozen=True)
class LayerPlace:
    """Where a layer keeps what it keeps: which group's pages, and the byte in each of them.

    `further`: the bytes of its second state and the following ones.
    """

    group: int
    offset_bytes: int
    further: tuple[int, ...] = ()

    def at(self, number: int) -> int:
        """The byte of one of its states."""
        return (self.offset_bytes, *self.further)[number]


@dataclass(frozen=True)
class CacheGroup:
    """Layers that keep the same tokens, at most `places` of them in one page; or `per_request`,
    those that keep a state of each request, all of them in one page."""

    name: str
    window: int | None
    layers: tuple[int, ...]
    per_request: bool = False


@dataclass(frozen=True)
class CacheSchema:
    """What the runtime allocates and what kernels address; both read it from here.

    Pages of tokens have `page_bytes`, those of states `state_bytes` (0: there are none).
    """

    page_bytes: int
    groups: tuple[CacheGroup, ...]
    places: dict[int, LayerPlace]
    state_bytes: int = 0

    @property
    def kept_places(self) -> tuple[tuple[int, int], ...]:
        """(layer, number of the state) in the order of a library's table: each layer's first one
        in the order of layers, then the others."""
        layers = sorted(self.places)
        further = [(n, i + 1) for n in layers for i in range(len(self.places[n].further))]
        return (*((n, 0) for n in layers), *further)

    @property
    def token_groups(self) -> tuple[CacheGroup, ...]:
        """Groups that keep something of each token."""
        return tuple(g for g in self.groups if not g.per_request)


def layer_bytes(spec: KeptSpec) -> int:
    """Bytes of one page of one layer, to whole cache lines: 16 tokens, or one request."""
    count = 1 if spec.per_request else PAGE_TOKENS
    return -(-count * spec.elements * spec.dtype.bits // 8 // _LINE) * _LINE


def cache_schema(layers: tuple[tuple[int, KeptSpec], ...]) -> CacheSchema:
    """Group layers of equal spec so that every page holds about the same number of them.

    Group size is the smallest bucket, unless the largest is less than half as big again: then the
    largest, and the shorter group leaves places unused (the rule that hybrid engines settled on).
    A layer that shares another one's keys and values has that one's place, no bytes of its own.
    States of requests are a group of their own, the last one.
    """
    shared = {layer: spec.kv_share_with for layer, spec in layers if spec.kv_share_with is not None}
    layers = tuple((layer, spec) for layer, spec in layers if layer not in shared)
    buckets: dict[KeptSpec, list[int]] = {}
    for layer, spec in layers:
        if not spec.per_request:
            buckets.setdefault(spec, []).append(layer)
    counts = [len(b) for b in buckets.values()]
    size = max(counts) if counts and max(counts) < 1.5 * min(counts) else min(counts, default=0)
    page_bytes = max((size * layer_bytes(spec) for spec in buckets), default=_LINE)
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
    found = _distinct(groups)
    state_places, state_bytes = _states(layers, len(found))
    if state_places:
        found = (*found, CacheGroup(STATES, None, tuple(state_places), per_request=True))
    return CacheSchema(page_bytes, found, places | state_places, state_bytes)


def _states(
    layers: tuple[tuple[int, KeptSpec], ...], group: int
) -> tuple[dict[int, LayerPlace], int]:
    """Where the states of each layer lie, one after the other, and the bytes of all of them."""
    offsets: dict[int, list[int]] = {}
    end = 0
    for layer, spec in layers:
        if spec.per_request:
            offsets.setdefault(layer, []).append(end)
            end += layer_bytes(spec)
    return {n: LayerPlace(group, at[0], tuple(at[1:])) for n, at in offsets.items()}, end


def _distinct(groups: list[CacheGroup]) -> tuple[CacheGroup, ...]:
    """Group names become field names of the step's arguments: each one once."""
    found: list[CacheGroup] = []
    for group in groups:
        taken = {g.name for g in found}
        name, count = group.name, 1
        while name in taken:
            count += 1
            name = f"{group.name}_{count}"
        found.append(replace(group, name=name))
    return tuple(found)
