"""Descriptors of matrices: what generators may say of them, and how the step program makes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gpu_toy as toy
import pytest
from fake_driver import Outcome, build_driver, parameter_sizes, run_commands

from kernelgen.codegen.cuda.host import StepProgram, step_value_places
from kernelgen.codegen.cuda.image import BoxImage
from kernelgen.codegen.cuda.launches import (
    MOST_MATRICES,
    GpuKernel,
    GpuPass,
    Matrix,
    Operand,
    Pointer,
    launch_key,
)
from kernelgen.codegen.cuda.unit import Argument, TritonUnit, descriptor_type
from kernelgen.compile.store import Store
from kernelgen.ir.types import Sizes
from kernelgen.planner.plan import Launch, Plan
from kernelgen.planner.plan import Operand as Given

ROWS = descriptor_type("bf16", 64, 64)
WEIGHTS = descriptor_type("bf16", 128, 64)
UNIT = TritonUnit(
    "product",
    "",
    "product",
    (
        Argument("x", ROWS),
        Argument("w", WEIGHTS),
        Argument("y", "*bf16", 16),
        Argument("args", "*i32", 16),
    ),
    pdl=True,
)
PASS = GpuPass(
    UNIT,
    (
        Matrix(0, lambda sizes: sizes.tokens, toy.K),
        Matrix(1, lambda sizes: toy.N, toy.K),
        Operand(2),
        Pointer.ARGS,
    ),
    lambda sizes: (4, 1, 1),
)
BOXES = (BoxImage(9, 3, 64, 64), BoxImage(9, 2, 128, 32))


def _plan(phase: str, size: int) -> Plan:
    x, y = Given("buffer", "x", 256), Given("buffer", "y", 4096)
    launches = tuple(
        Launch(toy.GEMV, layer, (x, Given("weight", "w"), y), toy.PRICE) for layer in (0, 1, 0)
    )
    return replace(toy.plan(phase, size), launches=launches)


def _program() -> StepProgram:
    kernels = {launch_key(toy.GEMV, toy.PRICE.choice): GpuKernel((PASS,))}
    plans = (_plan("decode", 4), _plan("mixed", 64))
    return replace(toy.program(), plans=plans, kernels=kernels)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, program = tmp_path_factory.mktemp("descriptors"), _program()
    driver = build_driver(folder / "driver")
    cubins = {unit.name: folder / f"{unit.name}.cubin" for unit in program.units()}
    for path in cubins.values():
        path.write_text("code")
    images = {unit.name: toy.made_up_image(unit, 90) for unit in program.units()}
    images["product"] = replace(images["product"], boxes=BOXES)
    store = Store(folder / "store")
    with store.session():
        library = toy.link(program, images, cubins, store)
    types = {unit.function: [a.type for a in unit.signature] for unit in program.units()}
    settings = {"FAKE_PARAMETERS": parameter_sizes(types), "FAKE_SM": "90"}

    def commands(*given: list[Any], **more: str) -> Outcome:
        log = folder / "calls.log"
        return run_commands(library, given, driver=driver, log=log, **{**settings, **more})

    return commands


def _maps(done: Outcome) -> list[str]:
    return [call for call in done.calls if call.startswith("cuTensorMapEncodeTiled")]


def test_maps_are_made_of_what_is_bound(run: Any) -> None:
    done = run(*toy.bind_all(), ["step", 0, toy.args()], ["step", 1, toy.args()]).fine()
    first = toy.ADDRESS["workspace"] + step_value_places(toy.ARGS)[-1]
    x, y, w = first + 256, first + 4096, toy.ADDRESS["layers.0.w"]
    line = "cuTensorMapEncodeTiled element=9 start={} sides=1000,{} row=2000 box={} swizzle={}"
    rows, weights = line.format(x, 4, "64,64", 3), line.format(w, 250, "32,128", 2)
    assert _maps(done)[:2] == [f"{rows} promotion=2", f"{weights} promotion=2"]
    assert len(_maps(done)) == 12 and f"start={x} sides=1000,64 " in _maps(done)[6]
    launch = done.launches[1]
    sides = (4, 1000, 1000, 1), (250, 1000, 1000, 1)
    assert launch.values == (x, *sides[0], w, *sides[1], y, toy.ADDRESS["args"], 0, 0)
    assert launch.attributes == {6: 1}
    assert done.launches[2].values[5] == toy.ADDRESS["layers.1.w"]


def test_one_kernel_alone_describes_what_it_is_given(run: Any) -> None:
    x = toy.tensor(1 << 24, [4, toy.K], "bfloat16")
    done = run(*toy.bind_all(), ["kernel", "gemv", 0, toy.args(), x, None, None]).fine()
    assert [
        f"start={at} " in call for at, call in zip((1 << 24, 1 << 20), _maps(done), strict=True)
    ]
    assert done.launches[0].values[0] == 1 << 24
    unbound = run(["kernel", "gemv", 0, toy.args(), x, None, x])
    assert unbound.error() == "RuntimeError: layers.0.w: not bound, or too small for the plan"


def test_a_map_that_the_driver_refuses_names_the_launch(run: Any) -> None:
    done = run(*toy.bind_all(), ["step", 0, toy.args()], FAKE_FAIL="cuTensorMapEncodeTiled=2@4")
    text = "RuntimeError: product of layer 1: cuTensorMapEncodeTiled: CUDA_ERROR_OUT_OF_MEMORY"
    assert done.error().startswith(text)


def test_contradictions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no type 'tensordesc<bf16>'"):
        replace(UNIT, signature=(Argument("x", "tensordesc<bf16>"),))
    with pytest.raises(ValueError, match=r"x is tensordesc.* given Operand"):
        replace(PASS, parameters=(Operand(0), *PASS.parameters[1:]))
    with pytest.raises(ValueError, match=r"y is \*bf16, given Matrix"):
        replace(PASS, parameters=(*PASS.parameters[:2], Matrix(2, lambda s: 1, 1), Pointer.ARGS))
    many = [Argument(f"x{i}", ROWS) for i in range(MOST_MATRICES + 1)]
    with pytest.raises(ValueError, match="more than 8 descriptors"):
        GpuPass(
            replace(UNIT, signature=tuple(many)),
            tuple(Matrix(i, lambda s: 1, 8) for i in range(len(many))),
            lambda sizes: (1, 1, 1),
        )
    assert Argument("x", ROWS).block == (64, 64) and Argument("y", "*bf16").block is None
    images = {unit.name: toy.made_up_image(unit, 90) for unit in _program().units()}
    with pytest.raises(ValueError, match="product: 2 descriptors, code for 0"):
        toy.link(_program(), images, {}, cast(Any, None))
    assert PASS.parameters[0].rows(Sizes(5, 1, 1)) == 5  # type: ignore[union-attr]
