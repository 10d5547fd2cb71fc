"""Owns what machine code has compiled in besides its variant, as data: device, model, arguments."""

from __future__ import annotations

from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.hw.device import Device
from kernelgen.ir.graph import Graph
from kernelgen.planner.caches import CacheSchema
from kernelgen.spec.model import CacheSpec
from kernelgen.tune.bundle import (
    CacheGroupFacts,
    DeviceFacts,
    FieldFacts,
    LayerFacts,
    ModelFacts,
    TableFacts,
)


def device_facts(device: Device) -> DeviceFacts:
    """What a measurement is judged by."""
    return DeviceFacts(
        target=device.target,
        sm=device.sm,
        name=device.name,
        driver_names=device.driver_names,
        l2_bytes=device.l2_bytes,
        read_gb_s=device.read_gb_s,
        copy_gb_s=device.copy_gb_s,
        boundary_us=device.boundary_us,
        tflops={rate.dtype: rate.tflops for rate in device.rates},
    )


def model_facts(graph: Graph, cache: CacheSchema, args: ArgsLayout, vocabulary: int) -> ModelFacts:
    """What the kernels of a model have compiled in, as data; layers are those with keys and
    values."""
    spec = {layer: kept for layer, kept in graph.caches if isinstance(kept, CacheSpec)}
    return ModelFacts(
        name=graph.name,
        vocabulary=vocabulary,
        page_bytes=cache.page_bytes,
        cache_groups=tuple(CacheGroupFacts(g.name, g.window) for g in cache.token_groups),
        layers=tuple(
            LayerFacts(
                layer,
                place.group,
                place.offset_bytes,
                spec[layer].kv_heads,
                spec[layer].head_dim,
                spec[layer].dtype.torch,
            )
            for layer, place in sorted(cache.places.items())
            if layer in spec
        ),
        args_words=args.words,
        max_rows=args.max_rows,
        max_pages=args.max_pages,
        fields=tuple(FieldFacts(f.name, f.offset, f.shape, f.bits) for f in args.fields),
        tables=tuple(TableFacts(t.name, t.inv_freq, t.scale, t.positions) for t in graph.tables),
    )
