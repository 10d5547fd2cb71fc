"""Owns the step program of a GPU target: plans as tables of launches that plain C++ walks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelgen.codegen.cuda.carveout import carve_outs
from kernelgen.codegen.cuda.image import KernelImage
from kernelgen.codegen.cuda.launches import GpuKernel, GpuKernels, GpuPass, launch_key
from kernelgen.codegen.cuda.refs import STEP_VALUES, References, parameter_places
from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.codegen.rendering import render
from kernelgen.codegen.step_args import ArgsLayout
from kernelgen.codegen.step_rules import LOGPROB_WORDS, RulesLayout, mask_words
from kernelgen.codegen.weights import BoundWeight
from kernelgen.core.resources import templates_dir
from kernelgen.planner.caches import CacheSchema
from kernelgen.planner.plan import Launch, Plan

PREPARE = "prepare"
"""name of the launch that opens every step: ids, positions and rows of all token rows"""

_ELEMENTS = {
    "float32": "Element::f32",
    "bfloat16": "Element::bf16",
    "int32": "Element::i32",
    "uint8": "Element::u8",
}
_PAGE = 256


@dataclass(frozen=True)
class StepProgram:
    """Everything that the step of one SM is made of. `prepare` opens each step; see `PREPARE`.

    `rules` is the layout of what `following` works on.
    """

    sm: int
    plans: tuple[Plan, ...]
    kernels: GpuKernels
    prepare: GpuKernel
    weights: tuple[BoundWeight, ...]
    cache: CacheSchema
    args: ArgsLayout
    vocabulary: int
    rules: RulesLayout | None = None
    following: Mapping[str, GpuKernel] = field(default_factory=dict)
    """what may be launched behind a step, by the name of its export; all or nothing"""

    @property
    def folder(self) -> str:
        """Folder of this SM's sources and cubins in a build: `sm_90`."""
        return f"sm_{self.sm}"

    def kernel(self, launch: Launch) -> GpuKernel:
        """What does the work of a planned launch."""
        return self.kernels[launch_key(launch.kernel, launch.price.choice)]

    def units(self) -> tuple[TritonUnit, ...]:
        """Every unit of the step once, in order of first use: what there is to compile."""
        found: dict[str, TritonUnit] = {}
        for one in self._passes():
            if found.setdefault(one.unit.name, one.unit) != one.unit:
                raise ValueError(f"two different units are called {one.unit.name}")
        return tuple(found.values())

    def _passes(self) -> Iterator[GpuPass]:
        yield from self.prepare.passes
        for kernel in self.following.values():
            yield from kernel.passes
        for plan in self.plans:
            for launch in plan.launches:
                yield from self.kernel(launch).passes


def step_value_places(args: ArgsLayout) -> tuple[int, ...]:
    """Bytes from the start of the workspace to token ids, positions and rows, and to their end."""
    each = -(-4 * args.max_tokens // _PAGE) * _PAGE
    return tuple(each * i for i in range(len(STEP_VALUES) + 1))


def workspace_bytes(plan: Plan, args: ArgsLayout) -> int:
    """What the runtime has to allocate for a plan: step values first, then the plan's buffers."""
    return step_value_places(args)[-1] + plan.workspace_bytes


def cuda_step(program: StepProgram, images: Mapping[str, KernelImage]) -> dict[str, str]:
    """The step program's translation unit: path → text. `images`: unit name → compiled kernel.

    It takes the cubin of each unit from `<folder>/<unit name>.cubin`.
    """
    units = program.units()
    tables = _Tables(program, units)
    plans = [tables.plan(plan) for plan in program.plans]
    carved = carve_outs(program.plans, program.kernels, images)
    text = render(
        "host/cuda_step.cpp.j2",
        model=program.plans[0].graph.name,
        sm=program.sm,
        folder=program.folder,
        triton=images[units[0].name].triton,
        assembler=images[units[0].name].assembler,
        kernels=[
            _kernel(u, images[u.name], tables.places.get(u.name, ()), carved[u.name]) for u in units
        ],
        planned=[{"name": n, "operands": count} for n, count in tables.planned.items()],
        weights=[_weight(w) for w in program.weights],
        layers=tables.refs.offsets or [0],
        refs=tables.refs.lines,
        matrices=list(tables.refs.matrices),
        slots=list(tables.slots),
        plans=plans,
        following=list(program.following),
        vocabulary=program.vocabulary,
        page_bytes=program.cache.page_bytes,
        state_bytes=program.cache.state_bytes,
        args_words=program.args.words,
        step_values=step_value_places(program.args)[:-1],
        counters=max(plan.counters for plan in program.plans),
        rule_words=program.rules.words if program.rules else 1,
        logprob_words=LOGPROB_WORDS,
        mask_words=mask_words(program.vocabulary),
    )
    return {f"{program.folder}/step.cpp": text}


def cuda_headers() -> dict[str, str]:
    """Library headers that the step program includes: path → text."""
    shared = [templates_dir() / "cpp" / "lib" / name for name in ("buffer.h", "ffi.h")]
    library = sorted((templates_dir() / "cuda" / "lib").glob("*.h"))
    return {f"kg/{path.name}": path.read_text() for path in (*shared, *library)}


class _Tables:
    """Rows of the plans, and the tables that they point into, each distinct entry once."""

    def __init__(self, program: StepProgram, units: Sequence[TritonUnit]) -> None:
        self.program = program
        self.kernels = {unit.name: i for i, unit in enumerate(units)}
        self.refs = References(program.weights, program.cache, program.args)
        self.planned: dict[str, int] = {}
        self.places: dict[str, tuple[int, ...]] = {}
        self.slots: dict[tuple[int, ...], int] = {}

    def plan(self, plan: Plan) -> dict[str, Any]:
        """A plan with all its launches as numbers into the tables."""
        first = step_value_places(self.program.args)[-1]
        slots: dict[int, int] = {}
        lines = list(self._lines(PREPARE, self.program.prepare, None, plan, slots))
        for launch in plan.launches:
            kernel = self.program.kernel(launch)
            lines += self._lines(launch.kernel.name, kernel, launch, plan, slots)
        offsets = tuple(first + offset for offset in slots) or (0,)
        return {
            "phase": plan.phase,
            "decode": _cpp(plan.phase == "decode"),
            "size": plan.size,
            # In a mixed plan the caller alone knows how many logits it asks for.
            "rows": plan.size if plan.phase == "decode" else 1,
            "launches": lines,
            "following": [
                list(self._lines(name, kernel, None, plan, slots))
                for name, kernel in self.program.following.items()
            ],
            "slots": self.slots.setdefault(offsets, len(self.slots)),
            "workspace_bytes": first + plan.workspace_bytes,
        }

    def _lines(
        self,
        name: str,
        kernel: GpuKernel,
        launch: Launch | None,
        plan: Plan,
        slots: dict[int, int],
    ) -> Iterator[dict[str, Any]]:
        operands = launch.operands if launch else ()
        signature = launch.kernel.signature if launch else ()
        if self.planned.setdefault(name, len(signature)) != len(signature):
            raise ValueError(f"{name}: planned with different signatures")
        layer = launch.layer if launch else None
        sizes = launch.kernel.launch_sizes(plan.sizes) if launch else plan.sizes
        where = "" if layer is None else f"layer {layer} "
        for index, one in enumerate(kernel.passes):
            places = parameter_places(one.parameters, operands, signature)
            if self.places.setdefault(one.unit.name, places) != places:
                raise ValueError(f"{one.unit.name}: launched for different signatures")
            refs = self.refs.of(one, operands, layer, sizes, slots)
            yield {
                "kernel": self.kernels[one.unit.name],
                "planned": list(self.planned).index(name),
                "index": index,
                "layer": -1 if layer is None else layer,
                "grid": one.grid(sizes),
                "refs": refs,
                "note": f"{where}{one.unit.name}",
            }


def _kernel(
    unit: TritonUnit, image: KernelImage, places: tuple[int, ...], carve_out: int
) -> dict[str, Any]:
    types = tuple(a.type for a in unit.signature)
    if image.arguments != types:
        raise ValueError(f"{unit.name}: compiled with {image.arguments}, launched with {types}")
    boxes = _boxes(unit, image)
    return {
        "name": unit.name,
        "symbol": image.symbol,
        "threads": image.threads,
        "shared_bytes": image.shared_bytes,
        "carve_out": carve_out,
        "pdl": _cpp(image.pdl),
        "cooperative": _cpp(image.cooperative),
        "cluster": image.cluster,
        "registers": image.registers,
        "parameters": [
            f'{{"{a.name}", {place}{boxes.get(a.name, "")}}}'
            for a, place in zip(unit.signature, places, strict=True)
        ],
    }


def _boxes(unit: TritonUnit, image: KernelImage) -> dict[str, str]:
    """What follows in the parameter of each descriptor: element, swizzle, columns, rows."""
    names = [a.name for a in unit.signature if a.block]
    if len(names) != len(image.boxes):
        raise ValueError(f"{unit.name}: {len(names)} descriptors, code for {len(image.boxes)}")
    return {
        name: f", {{{box.element}, {box.swizzle}, {{{box.columns}, {box.rows}}}}}"
        for name, box in zip(names, image.boxes, strict=True)
    }


def _weight(weight: BoundWeight) -> dict[str, Any]:
    return {
        "name": weight.name,
        "dtype": _ELEMENTS[weight.dtype],
        "elements": weight.elements,
        "layout": weight.layout,
        "shape": "×".join(map(str, weight.shape)),
    }


def _cpp(value: bool) -> str:
    return "true" if value else "false"
