"""Owns the step from planned kernels to groups of a bundle, once their tiles are compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernelgen.codegen.cuda.image import BoxImage, KernelImage
from kernelgen.codegen.cuda.launches import (
    BlockTable,
    Constant,
    GpuKernel,
    LayerOffset,
    Matrix,
    Operand,
    Parameter,
    Pointer,
)
from kernelgen.codegen.manifest import sub_graph
from kernelgen.core.dtypes import BFLOAT16
from kernelgen.formats import WeightFormat
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Sizes
from kernelgen.tune.bundle import Argument, Candidate, Extents, Group, Launch, Pruned
from kernelgen.tune.bundle import Matrix as MatrixFacts
from kernelgen.tune.compiling import Compiled
from kernelgen.tune.groups import Planned, Tile


def group_of(planned: Planned, model: str, made: Compiled, digests: Mapping[str, str]) -> Group:
    """The group of a planned kernel; `digests` names the machine code of each unit."""
    match = planned.kernel.match
    kept = [t for t in planned.tiles if all(u.name in made.kernels for u in t.units)]
    lost = [t for t in planned.tiles if t not in kept]
    return Group(
        model=model,
        kernel=planned.kernel.name,
        family=match.family.name,
        variant=match.variant,
        bucket=str(planned.bucket),
        extents=Extents.of(planned.sizes),
        graph=sub_graph(planned.kernel),
        signature=planned.kernel.signature,
        layers=planned.layers,
        placements=planned.placements,
        bytes=planned.price.bytes,
        flops=planned.price.flops,
        math=_math(planned),
        chosen=planned.chosen,
        planned_us=planned.price.us,
        step_us=planned.step_us,
        before=dict(planned.before.choice),
        before_verdict=str(planned.before.verdict),
        candidates=tuple(_candidate(t, made, digests, planned) for t in kept),
        looked_at=planned.looked_at,
        pruned=(*planned.pruned, *_lost(lost, made)),
        elsewhere=planned.elsewhere,
        code=planned.code,
    )


def _lost(tiles: Sequence[Tile], made: Compiled) -> list[Pruned]:
    """Tiles that the compiler excluded, by the reason without its numbers."""
    found: dict[str, list[str]] = {}
    for tile in tiles:
        why = next(made.failed[u.name] for u in tile.units if u.name in made.failed)
        found.setdefault(why.partition(":")[0].partition(" (")[0], []).append(
            tile.selected.point.text
        )
    return [Pruned(f"compiled: {why}", len(texts), texts[0]) for why, texts in found.items()]


def _candidate(
    tile: Tile, made: Compiled, digests: Mapping[str, str], planned: Planned
) -> Candidate:
    point, sizes = tile.selected.point, planned.kernel.launch_sizes(planned.sizes)
    return Candidate(
        choice=dict(point.choice),
        launches=launches_of(tile.kernel, made, digests, sizes),
        scratch_bytes=tile.scratch_bytes,
        counters=tile.counters,
        source=tile.source,
        modelled_us=point.us,
        why=tile.selected.why,
    )


def launches_of(
    kernel: GpuKernel, made: Compiled, digests: Mapping[str, str], sizes: Sizes
) -> tuple[Launch, ...]:
    """All passes of a compiled kernel at a size."""
    return tuple(
        Launch(
            code=digests[one.unit.name],
            grid=one.grid(sizes),
            arguments=_arguments(one.parameters, made.kernels[one.unit.name].image, sizes),
            **_of_image(made.kernels[one.unit.name].image),
        )
        for one in kernel.passes
    )


def _of_image(image: KernelImage) -> dict[str, Any]:
    """What the compiler says of a launch."""
    return {
        "symbol": image.symbol,
        "threads": image.threads,
        "shared_bytes": image.shared_bytes,
        "pdl": image.pdl,
        "cooperative": image.cooperative,
        "cluster": image.cluster,
        "registers": image.registers,
    }


def _arguments(
    parameters: Sequence[Parameter], image: KernelImage, sizes: Sizes
) -> tuple[Argument, ...]:
    """Parameters as data; each descriptor takes the next box of the compiled code."""
    boxes = iter(image.boxes)
    return tuple(argument_of(p, sizes, boxes) for p in parameters)


def argument_of(parameter: Parameter, sizes: Sizes, boxes: Iterator[BoxImage]) -> Argument:
    """A parameter as data; a descriptor takes the next of `boxes`."""
    if isinstance(parameter, Matrix):
        box, rows = next(boxes), parameter.rows(sizes)
        shape = MatrixFacts(
            rows, parameter.columns, box.element, box.swizzle, box.rows, box.columns
        )
        return Argument("matrix", parameter.index, shape)
    if isinstance(parameter, Operand):
        return Argument("operand", parameter.index)
    if isinstance(parameter, Pointer):
        # Only what follows a step takes these, and no plan holds that.
        assert parameter is not Pointer.RULES
        assert parameter is not Pointer.LOGPROBS and parameter is not Pointer.MASKS
        return Argument(parameter.value)
    if isinstance(parameter, LayerOffset):
        return Argument("layer_offset")
    if isinstance(parameter, BlockTable):
        return Argument("block_table")
    assert isinstance(parameter, Constant)
    return Argument("integer", parameter.of(sizes))


def _math(planned: Planned) -> str:
    """dtype of the products: narrow only where both sides are, as they are stored or decoded."""
    region = planned.kernel.match.region
    products = region.with_trait(Trait.MATMUL | Trait.ATTENTION | Trait.EXPERTS)
    kinds = {region.value(name).type.dtype for n in products for name in n.inputs[:2]}
    narrow = all(kind == BFLOAT16 or isinstance(kind, WeightFormat) for kind in kinds)
    return "bfloat16" if kinds and narrow else "float32"
