"""Owns the names of layer blocks: what sets a layer apart from the others of its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kernelgen.spec.model import AttentionSpec, DeltaSpec, LatentSpec, LayerSpec

_MIXERS: Mapping[type, str] = {AttentionSpec: "", LatentSpec: "_latent", DeltaSpec: "_delta"}


def layer_names(kinds: Sequence[LayerSpec]) -> list[str]:
    """One name for each distinct layer: `layer`, or `layer_full`, `layer_window_nope`, …

    Only traits in which the layers differ are named; what is still equal gets a number.
    """
    mixers = {type(k.attention) for k in kinds}
    windows = {k.attention.window is not None for k in kinds}
    ropes = {k.attention.rope is not None for k in kinds}
    names = []
    for kind in kinds:
        name = "layer"
        if len(mixers) > 1:
            name += _MIXERS[type(kind.attention)]
        if len(windows) > 1:
            name += "_window" if kind.attention.window is not None else "_full"
        if len(ropes) > 1 and kind.attention.rope is None:
            name += "_nope"
        names.append(name)
    seen: Counter[str] = Counter()
    out = []
    for name in names:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return out
