"""A GPU step whose kernels run under Triton's interpreter: the same plans, launches and buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fake_cuda import FakeCuda

from kernelgen.cli.model import ModelSource
from kernelgen.cli.pipeline import Lowered, lowered
from kernelgen.codegen.cuda.host import STEP_VALUES, StepProgram, step_value_places, workspace_bytes
from kernelgen.codegen.cuda.launches import (
    BlockTable,
    Constant,
    GpuPass,
    LayerOffset,
    Matrix,
    Operand,
    Parameter,
    Pointer,
)
from kernelgen.codegen.cuda.program import cuda_program
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.manifest import (
    CheckpointTensor,
    Identity,
    Library,
    TargetBuild,
    manifest,
)
from kernelgen.hw import parse_target
from kernelgen.lower.float8_cache import without_scales
from kernelgen.planner.plan import COUNTERS, SCRATCH, Launch, Plan
from kernelgen.planner.plan import Operand as Given
from kernelgen.planner.planner import Planner
from kernelgen.verify.interpreter import interpret

_ELEMENTS = {
    "*bf16": torch.bfloat16,
    "*fp32": torch.float32,
    "*i32": torch.int32,
    "*u8": torch.uint8,
}


@dataclass(frozen=True)
class Model:
    """A model planned for one GPU at a few sizes, and what its build's manifest says."""

    lowered: Lowered
    program: StepProgram
    manifest: dict[str, Any]


def planned(
    source: ModelSource,
    target: str,
    dtype: str,
    decode: Sequence[int],
    mixed: Sequence[int],
    context: int,
    fusion: bool = True,
    invariant: bool = False,
    cache: str = "auto",
) -> Model:
    """Plans, program and manifest as `kernelgen build` makes them; nothing is compiled."""
    model, device = lowered(source, dtype, cache=cache), parse_target(target)
    families = catalogue(device, invariant=invariant)
    planner = Planner(
        model.graph, device, device.target, families, fusion, context, invariant=invariant
    )
    plans = [planner.plan("decode", n) for n in decode] + [planner.plan("mixed", n) for n in mixed]
    program = cuda_program(plans, device.sm, model.spec.vocab, model.spec.max_positions)
    made = TargetBuild(
        target=device.target,
        libraries=[Library(device.sm_name, f"lib/cuda_{device.sm_name}.so", False)],
        weights=program.weights,
        cache=program.cache,
        args=program.args,
        plans=program.plans,
        workspace_bytes=[workspace_bytes(plan, program.args) for plan in plans],
        sources={},
        device_names=device.driver_names,
        rules=program.rules,
        counters=max(plan.counters for plan in plans),
    )
    rules = model.architecture.checkpoint(model.spec, without_scales(model.graph))
    tensors = [CheckpointTensor(r.name, r.shape, r.parameter, r.take, r.expert) for r in rules]
    identity = Identity(source.name, "1.0", "kernelgen 0", dtype, {})
    said = manifest(
        identity, model.spec, [made], tensors, model.ignored if cache == "fp8" else (),
        scalars=model.scalars,
    )  # fmt: skip
    return Model(model, program, said)


@dataclass
class InterpretedLibrary:
    """`StepLibrary` that walks the step program's launches as the generated C++ does.

    `done` holds the names of the units that have run on a step with tokens; `before` is called when
    a step starts.
    """

    program: StepProgram
    gpu: FakeCuda
    bound: dict[str, torch.Tensor] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    before: Callable[[], None] = lambda: None

    def bind(self, name: str, tensor: torch.Tensor) -> None:
        self.bound[name] = tensor

    def load(self, plan_id: int) -> None:
        pass

    def refine(self, plan_id: int, args: torch.Tensor) -> None:
        self._follow("refine", plan_id, args)

    def keep_masks(self, plan_id: int, args: torch.Tensor) -> None:
        self._follow("keep_masks", plan_id, args)

    def logprobs(self, plan_id: int, args: torch.Tensor) -> None:
        self._follow("logprobs", plan_id, args)

    def _follow(self, name: str, plan_id: int, args: torch.Tensor) -> None:
        run = _Step(self, self.program.plans[plan_id], args, dict(self.bound), name)
        self.gpu.give(run, self.gpu.current)

    def set_threads(self, count: int) -> None:
        pass

    def read_bandwidth(self, seconds: float) -> float | None:
        return None

    def step(self, plan_id: int, args: torch.Tensor) -> None:
        run = _Step(self, self.program.plans[plan_id], args, dict(self.bound))
        self.gpu.give(run, self.gpu.current)


@dataclass(frozen=True)
class _Step:
    """One step on the buffers that were bound when it was given."""

    library: InterpretedLibrary
    plan: Plan
    args: torch.Tensor
    bound: Mapping[str, torch.Tensor]
    following: str = ""
    """name of what follows the step, instead of the step"""

    def __call__(self) -> None:
        self.library.before()
        program, sizes = self.library.program, self.plan.sizes
        if self.following:
            for one in program.following[self.following].passes:
                self._run(one, None, one.grid(sizes))
            return
        for one in program.prepare.passes:
            self._run(one, None, one.grid(sizes))
        for launch in self.plan.launches:
            for one in program.kernel(launch).passes:
                self._run(one, launch, one.grid(launch.kernel.launch_sizes(sizes)))

    def _run(self, one: GpuPass, launch: Launch | None, grid: tuple[int, int, int]) -> None:
        if int(self.args[0]):
            self.library.done.add(one.unit.name)
        if 0 in grid:
            return
        values = [
            self._value(parameter, argument.type, launch)
            for parameter, argument in zip(one.parameters, one.unit.signature, strict=True)
        ]
        interpret(one.unit, grid, values)

    def _value(self, parameter: Parameter, type_: str, launch: Launch | None) -> Any:
        program = self.library.program
        operands = launch.operands if launch else ()
        if isinstance(parameter, Constant):
            return parameter.of(self.plan.sizes)
        if isinstance(parameter, Matrix):
            return self._matrix(parameter, operands, launch)
        if isinstance(parameter, Operand):
            return self._operand(operands[parameter.index], type_)
        if isinstance(parameter, Pointer):
            return self._pointer(parameter, type_, operands)
        assert launch is not None and launch.layer is not None
        place = program.cache.places[launch.layer]
        if isinstance(parameter, LayerOffset):
            index = parameter.index
            return place.at(0 if index is None else operands[index].number)
        assert isinstance(parameter, BlockTable)
        group = program.cache.groups[place.group].name
        return self.args[program.args.offset(f"block_table.{group}") :]

    def _matrix(self, matrix: Matrix, operands: Sequence[Given], launch: Launch | None) -> Any:
        assert launch is not None
        rows = matrix.rows(launch.kernel.launch_sizes(self.plan.sizes))
        flat = self._operand(operands[matrix.index], "*bf16").view(torch.bfloat16).flatten()
        return flat[: rows * matrix.columns].view(rows, matrix.columns)

    def _operand(self, operand: Given, type_: str) -> torch.Tensor:
        if operand.kind == "buffer":
            first = step_value_places(self.library.program.args)[-1]
            return self._workspace(first + operand.offset_bytes, type_)
        if operand.kind in ("weight", "bound"):
            return self.bound[operand.name]
        if operand.kind == "state":
            assert operand.layer is not None
            cache = self.library.program.cache
            group = cache.groups[cache.places[operand.layer].group]
            return self.bound["states" if group.per_request else "cache"].view(_ELEMENTS[type_])
        return self._step_value(operand.name) if operand.name in STEP_VALUES else self.args

    def _pointer(self, pointer: Pointer, type_: str, operands: Sequence[Given]) -> torch.Tensor:
        if pointer is Pointer.ARGS:
            return self.args
        if pointer is Pointer.SCRATCH:
            scratch = next(o for o in operands if o.name.startswith(f"{SCRATCH}."))
            return self._operand(scratch, type_)
        if pointer.value in STEP_VALUES:
            return self._step_value(pointer.value)
        return self.bound[COUNTERS if pointer is Pointer.COUNTERS else pointer.value]

    def _step_value(self, name: str) -> torch.Tensor:
        place = step_value_places(self.library.program.args)[STEP_VALUES.index(name)]
        return self._workspace(place, "*i32")

    def _workspace(self, offset: int, type_: str) -> torch.Tensor:
        """What lies in the workspace from a byte on, as elements of a type."""
        kind = _ELEMENTS[type_]
        rest = self.bound["workspace"][offset:]
        return rest[: len(rest) // kind.itemsize * kind.itemsize].view(kind)
