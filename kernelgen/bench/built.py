"""Owns what a benchmark needs to know of a build: its cache, matrices, heads, and its plans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelgen.core.dtypes import dtype as dtype_named
from kernelgen.core.errors import UsageError
from kernelgen.pack.contents import Contents, read_contents
from kernelgen.report.plan_data import PlanView, read_plan

PAGE_TOKENS = 16


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps of a token: bytes of keys and values, and how far back it looks."""

    token_bytes: int
    window: int | None

    def read_bytes(self, context: int) -> int:
        """Bytes that a decode step reads of one request with `context` entries."""
        return self.token_bytes * (min(context, self.window) if self.window else context)


@dataclass(frozen=True)
class Heads:
    """Attention of one layer, as a baseline needs it."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None


@dataclass(frozen=True)
class StepPlan:
    """A plan of the build; `floor_bytes` is what its step must read at the plan's context."""

    view: PlanView
    floor_bytes: int


@dataclass(frozen=True)
class Built:
    """One target of a build.

    `matrices`: every weight of two dimensions as [outputs, inputs]. `layers` holds what the cache
    keeps by layer, `heads` is empty where layers have none that we know.
    """

    name: str
    target: str
    dtype: str
    vocab: int
    layers: Mapping[int, LayerCache]
    heads: Mapping[int, Heads]
    matrices: Mapping[str, tuple[int, int]]
    weight_bytes: int
    decode_sizes: tuple[int, ...]
    plans: Mapping[tuple[str, int], StepPlan]

    def decode_size(self, batch: int) -> int:
        """Size of the decode plan that a batch takes."""
        return min(size for size in self.decode_sizes if size >= batch)

    def decode_plan(self, batch: int) -> StepPlan | None:
        """The plan that a batch takes, where the build holds it."""
        return self.plans.get(("decode", self.decode_size(batch)))

    def cache_bytes(self, layer: int | None, batch: int, context: int) -> int:
        """Bytes of cache that a decode step reads: of one layer, or of all of them for None."""
        of = self.layers.values() if layer is None else [self.layers[layer]]
        return batch * sum(cache.read_bytes(context) for cache in of)

    def floor_bytes(self, batch: int, context: int) -> int:
        """Bytes that a decode step has to read however it is cut into kernels."""
        plan = self.decode_plan(batch)
        cache = self.cache_bytes(None, batch, context)
        if plan is None:
            return self.weight_bytes + cache
        planned = self.cache_bytes(None, plan.view.size, plan.view.context)
        return plan.floor_bytes - planned + cache


def read_built(path: Path, target: str) -> Built:
    """What the build folder or wheel at `path` says of `target`. `UsageError` where it is none."""
    contents = read_contents(path)
    manifest: Any = contents.manifest
    try:
        entry = next(t for t in manifest["targets"] if t["target"] == target)
        return _built(contents, manifest, entry)
    except (KeyError, TypeError, ValueError, StopIteration, AttributeError) as error:
        raise UsageError(
            f"manifest.json is not what this kernelgen writes ({type(error).__name__}: {error})",
            where=str(path),
            hint="build the model again",
        ) from None


def _built(contents: Contents, manifest: Any, entry: Any) -> Built:
    model = manifest["model"]
    weights = [w for w in entry["weights"] if "rope" not in w["source"]]
    decode = tuple(sorted(p["size"] for p in entry["plans"] if p["phase"] == "decode"))
    return Built(
        name=manifest["name"],
        target=entry["target"],
        dtype=manifest["activation_dtype"],
        vocab=model["vocab"],
        layers=_layers(entry["cache"]),
        heads=_heads(model),
        matrices={w["name"]: shape for w in weights if (shape := _matrix(w)) is not None},
        weight_bytes=_weight_bytes(weights, model["vocab"]),
        decode_sizes=decode,
        plans=_plans(contents, entry["target"].partition(":")[0]),
    )


def _layers(cache: Any) -> dict[int, LayerCache]:
    groups = [group for group in cache["groups"] if group["kind"] != "state"]
    places = max(len(group["layers"]) for group in groups)
    token_bytes = cache["page_bytes"] // places // PAGE_TOKENS
    return {
        layer: LayerCache(token_bytes, group["window"])
        for group in groups
        for layer in group["layers"]
    }


def _heads(model: Any) -> dict[int, Heads]:
    """By layer, for those kinds of layers that have heads at all."""
    found = {}
    for layer, kind in enumerate(model.get("kind_of_layer", ())):
        of = model["kinds"][kind]
        if {"heads", "kv_heads", "head_dim"} <= of.keys():
            found[layer] = Heads(of["heads"], of["kv_heads"], of["head_dim"], of.get("window"))
    return found


def _matrix(weight: Any) -> tuple[int, int] | None:
    """[outputs, inputs] before any layout; None for vectors."""
    packed = weight["source"]["packed"] if isinstance(weight["source"], dict) else None
    if packed is not None:
        return int(packed["rows"]), int(packed["cols"])
    rows, cols = sum(part["rows"] for part in weight["parts"]), weight["parts"][0]["cols"]
    return (rows, cols) if cols > 1 else None


def _weight_bytes(weights: Sequence[Any], vocab: int) -> int:
    """Of all weights, one matrix with a row a vocabulary entry: of a second one, which embeds,
    a step takes single rows.
    """
    heads = [w for w in weights if (m := _matrix(w)) is not None and m[0] == vocab]
    return sum(
        math.prod(w["shape"]) * dtype_named(w["dtype"]).bits // 8
        for w in weights
        if w not in heads[:-1]
    )


def _plans(contents: Contents, sm_name: str) -> dict[tuple[str, int], StepPlan]:
    found = {}
    for path in contents.files:
        if path.startswith(f"plans/{sm_name}_") and path.endswith(".json"):
            data: Any = contents.json(path)
            view = read_plan(data, source=f"{contents.source}: {path}")
            found[view.phase, view.size] = StepPlan(view, int(data.get("floor_bytes", 0)))
    return found
