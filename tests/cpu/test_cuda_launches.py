"""What a generator may tell the step program, and the contradictions that are refused."""

from __future__ import annotations

from dataclasses import replace

import gpu_toy
import gpu_toy_kernels as toy
import pytest

from kernelgen.codegen.cuda.host import StepProgram, cuda_step
from kernelgen.codegen.cuda.launches import (
    BlockTable,
    Constant,
    GpuKernel,
    GpuPass,
    LayerOffset,
    Operand,
    Pointer,
    launch_key,
)
from kernelgen.codegen.cuda.unit import Argument
from kernelgen.core.decode import from_json
from kernelgen.core.jsonio import dumps, loads
from kernelgen.planner.plan import Plan


def step(program: StepProgram) -> str:
    images = {u.name: gpu_toy.made_up_image(u, program.sm) for u in program.units()}
    return cuda_step(program, images)["sm_90/step.cpp"]


def changed(kernel: str, *passes: GpuPass) -> StepProgram:
    """The toy's step with other launches for one planned kernel."""
    program = gpu_toy.program()
    key = next(k for k in program.kernels if k.startswith(f"{kernel}("))
    return replace(program, kernels={**program.kernels, key: GpuKernel(passes)})


def test_text_depends_on_nothing_else() -> None:
    assert step(gpu_toy.program()) == step(gpu_toy.program())


def test_a_unit_survives_the_way_to_its_compiler() -> None:
    unit = replace(toy.gemv(), options=(("maxnreg", 64), ("scale", 0.5), ("debug", False)))
    again = from_json(type(unit), loads(dumps(unit), source="unit"), source="unit")
    assert again == unit


def test_choice_decides_the_key() -> None:
    kernel = gpu_toy.GEMV
    assert launch_key(kernel, {"b": 2, "a": 1}) == launch_key(kernel, {"a": 1, "b": 2})
    assert launch_key(kernel, {"a": 1}) != launch_key(kernel, {"a": 2})


BAD_PASSES = {
    "takes 3 arguments, not 2": (toy.add(), (Operand(0), Operand(1))),
    "a is \\*bf16, given": (toy.add(), (LayerOffset(), Operand(0), Operand(1))),
    "layer_offset is i64, given": (
        toy.insert(),
        (Operand(0), Operand(1), BlockTable(), BlockTable(), Operand(2), Constant(lambda s: 1)),
    ),
    "width is i32, given": (
        toy.insert(),
        (Operand(0), Operand(1), LayerOffset(), BlockTable(), Operand(2), Pointer.ARGS),
    ),
}


@pytest.mark.parametrize("text", BAD_PASSES)
def test_parameters_must_fit_the_arguments(text: str) -> None:
    unit, parameters = BAD_PASSES[text]
    with pytest.raises(ValueError, match=text):
        GpuPass(unit, parameters, lambda sizes: (1, 1, 1))


BAD_UNITS = {
    "is not an identifier": {"name": "a-b"},
    "no type 'bf17'": {"signature": (Argument("a", "bf17"),)},
    "named twice": {"constants": (("a", 1),)},
}


@pytest.mark.parametrize("text", BAD_UNITS)
def test_units_are_checked(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        replace(toy.add(), **BAD_UNITS[text])  # type: ignore[arg-type]


def test_two_units_of_one_name() -> None:
    (one,) = gpu_toy.KERNELS["gemv"].passes
    program = changed("gemv", replace(one, unit=replace(one.unit, name="merge")))
    with pytest.raises(ValueError, match="two different units are called merge"):
        step(program)


def test_one_unit_for_two_signatures() -> None:
    (gemv,) = gpu_toy.KERNELS["gemv"].passes
    swapped = replace(gemv, parameters=(Operand(1), Operand(0), Operand(2), Pointer.ARGS))
    with pytest.raises(ValueError, match="gemv: launched for different signatures"):
        step(changed("split_add", swapped))


def test_scratch_must_have_been_planned() -> None:
    (gemv,) = gpu_toy.KERNELS["gemv"].passes
    lacking = replace(gemv, parameters=(Operand(0), Operand(1), Pointer.SCRATCH, Pointer.ARGS))
    with pytest.raises(ValueError, match="without scratch"):
        step(changed("gemv", lacking))


def test_a_launch_of_no_layer_has_no_place_in_a_page() -> None:
    program = gpu_toy.program()

    def outside(plan: Plan) -> Plan:
        launches = tuple(
            replace(launch, layer=None) if launch.kernel.name == "insert" else launch
            for launch in plan.launches
        )
        return replace(plan, launches=launches)

    with pytest.raises(ValueError, match="belongs to no layer"):
        step(replace(program, plans=tuple(map(outside, program.plans))))


def test_code_of_another_signature_is_refused() -> None:
    program = gpu_toy.program()
    images = {u.name: gpu_toy.made_up_image(u, 90) for u in program.units()}
    images["gemv"] = replace(images["gemv"], arguments=("*bf16",))
    with pytest.raises(ValueError, match="gemv: compiled with"):
        cuda_step(program, images)
