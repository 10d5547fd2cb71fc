"""The Triton toolchain: code for every SM, reproducible, cached, and clear about every failure."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import gpu_toy_kernels as toy
import pytest

from kernelgen.codegen.cuda.image import BoxImage
from kernelgen.codegen.cuda.unit import Argument, TritonUnit, descriptor_type
from kernelgen.compile.cpp import BuildStep, CompileFailed
from kernelgen.compile.store import Store
from kernelgen.compile.triton import CompiledKernel, IllegalKernel, compile_triton
from kernelgen.core.errors import Interrupted

UNITS = (toy.add(), toy.gemv(), toy.insert(), toy.prepare())


def build(
    store: Store, *units: TritonUnit, sms: tuple[int, ...] = (90,), **options: object
) -> tuple[CompiledKernel, ...]:
    with store.session():
        return compile_triton(units, sms=sms, store=store, **{"jobs": 2, **options})  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[CompiledKernel, ...]:
    return build(Store(tmp_path_factory.mktemp("store")), *UNITS, sms=toy.SMS)


def test_every_sm_gets_its_code(made: tuple[CompiledKernel, ...]) -> None:
    assert [(k.name, k.sm) for k in made] == [(u.name, sm) for sm in toy.SMS for u in UNITS]
    for kernel in made:
        assert kernel.cubin.read_bytes()[:4] == b"\x7fELF"
        ptx = kernel.ptx.read_text()
        flavour = "a" if kernel.sm >= 90 else ""
        assert re.search(rf"^\.target sm_{kernel.sm}{flavour}\b", ptx, re.M)
        assert f".entry {kernel.image.symbol}(" in ptx
        assert kernel.image.threads == (32 if kernel.name == "insert" else 128)
        assert not kernel.cached


def test_dependent_launch_is_for_sm_90_and_later(made: tuple[CompiledKernel, ...]) -> None:
    for kernel in made:
        wanted = kernel.name != "add" and kernel.sm >= 90
        assert kernel.image.pdl is wanted
        assert ("griddepcontrol.wait" in kernel.ptx.read_text()) is wanted


def test_parameters_are_those_of_the_code(made: tuple[CompiledKernel, ...]) -> None:
    widths = {"*": "u64", "i32": "u32", "i64": "u64"}
    for kernel in made:
        head = kernel.ptx.read_text().split(".entry")[1].split(")")[0]
        found = re.findall(r"\.param \.(\w+)", head)
        types = (*kernel.image.arguments, "*", "*")
        assert found == [widths["*" if t[0] == "*" else t] for t in types]


def test_resources_are_those_that_cuobjdump_reads(made: tuple[CompiledKernel, ...]) -> None:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    for kernel in made:
        command = [str(tool), "--dump-resource-usage", str(kernel.cubin)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        match = re.search(r"REG:(\d+) STACK:(\d+)", text)
        assert match is not None, text
        assert (kernel.image.registers, kernel.image.stack_bytes) == tuple(map(int, match.groups()))
        assert kernel.image.spill_bytes == 0


def test_code_does_not_depend_on_order_place_or_company(
    made: tuple[CompiledKernel, ...], tmp_path: Path
) -> None:
    other = Store(tmp_path / "a" / "longer folder")
    again = build(other, *reversed(UNITS), sms=(100, 90, 80), jobs=1)
    first = {(k.name, k.sm): k for k in made}
    for kernel in again:
        same = first[kernel.name, kernel.sm]
        assert kernel.image.ptx_sha256 == same.image.ptx_sha256
        assert kernel.ptx.read_bytes() == same.ptx.read_bytes()
        if kernel.sm < 100:  # an assembler for sm_100 may give one of two codes
            assert kernel.cubin.read_bytes() == same.cubin.read_bytes()
    for kernel in made:
        data = kernel.cubin.read_bytes()
        assert not any(word in data for word in (b"/tmp", b"/home", b"site-packages", b".py"))


def test_only_what_changed_is_compiled(store: Store) -> None:
    steps: list[BuildStep] = []
    gemv = toy.gemv()
    build(store, gemv, progress=steps.append)
    build(store, replace(gemv, name="other", tile="another"), progress=steps.append)
    build(store, toy.gemv(n=251), progress=steps.append)
    build(store, replace(gemv, num_stages=2), progress=steps.append)
    build(store, gemv, replace(gemv, name="twin"), sms=(80,), progress=steps.append)
    assert [(s.label, s.cached) for s in steps] == [
        ("gemv sm_90", False),
        ("other sm_90", True),
        ("gemv sm_90", False),
        ("gemv sm_90", False),
        ("twin sm_80", True),
        ("gemv sm_80", False),
    ]


def test_units_may_import_modules(store: Store) -> None:
    shared = toy.HEAD + "def twice(x):\n    return x + x\n"
    text = toy.ADD.replace("total, mask", "twice(total), mask")
    unit = replace(toy.add(), text="from shapes.shared import twice\n" + text)
    (plain,) = build(store, toy.add())
    (made,) = build(store, unit, modules={"shapes/shared.py": shared})
    assert made.image.ptx_sha256 != plain.image.ptx_sha256
    changed = shared.replace("x + x", "x * x")
    (other,) = build(store, unit, modules={"shapes/shared.py": changed})
    assert other.image.ptx_sha256 != made.image.ptx_sha256


BROKEN = {
    "syntax": (replace(toy.add(), text=toy.ADD + "\n)"), "unmatched ')'"),
    "name": (
        replace(toy.add(), text=toy.ADD.replace("tl.load(a", "tl.load(c")),
        "line 5 of the function: NameError('c is not defined')",
    ),
    "types": (
        replace(toy.add(), signature=(Argument("a", "i32"), *toy.pointers("b", "y"))),
        "line 5 of the function: Unsupported ptr type",
    ),
    "function": (replace(toy.add(), function="sub"), "the file has no @triton.jit function sub"),
    "constant": (
        replace(toy.add(), constants=(("N", 1),)),
        "add: BLOCK has neither type nor value",
    ),
    "argument": (
        replace(toy.add(), constants=(("N", 1), ("BLOCK", 64), ("M", 1))),
        "add: M is no argument",
    ),
    "order": (
        replace(toy.add(), signature=toy.pointers("b", "a", "y")),
        "add takes a, b, y, not b, a, y",
    ),
    "option": (replace(toy.add(), options=(("warps", 4),)), "this Triton has no option warps"),
    "ptxas": (
        replace(toy.add(), options=(("ptx_version", 50),)),
        "error",
    ),
    "abort": (
        replace(toy.add(), text="import os\nos.abort()\n"),
        "the compiler was killed by signal 6",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_kernels_are_named_and_kept(store: Store, case: str) -> None:
    unit, text = BROKEN[case]
    with pytest.raises(CompileFailed) as caught:
        build(store, unit)
    message = str(caught.value)
    assert message.startswith("add sm_90 does not compile: ") and text.lower() in message.lower()
    assert len(message.splitlines()) < 8
    kept = Path(message.rpartition("source kept in ")[2])
    assert (kept / "add.py").read_text() == unit.text
    assert (kept / "errors.txt").is_file() and (kept / "unit.json").is_file()


def test_a_compiler_that_hangs_is_stopped(store: Store) -> None:
    slow = replace(toy.add(), text="import time\ntime.sleep(600)\n" + toy.ADD)
    with pytest.raises(CompileFailed, match="the compiler took longer than 2 s"):
        build(store, slow, time_limit_s=2.0)


def test_interrupted_builds_keep_what_is_finished(store: Store) -> None:
    def stop(step: BuildStep) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="1 of 2 kernels"):
        build(store, toy.add(), toy.prepare(), jobs=1, progress=stop)
    steps: list[BuildStep] = []
    build(store, toy.add(), toy.prepare(), progress=steps.append)
    assert sorted(step.cached for step in steps) == [False, True]


MATMUL = (
    toy.HEAD
    + '''def matmul(a, b, y, K: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr):
    """one tile of a product"""
    rows, depth = tl.arange(0, SIDE), tl.arange(0, DEPTH)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for start in range(0, K, DEPTH):
        left = tl.load(a + rows[:, None] * K + start + depth[None, :])
        right = tl.load(b + rows[None, :] * K + start + depth[:, None])
        total = tl.dot(left, right, total)
    tl.store(y + rows[:, None] * SIDE + rows[None, :], total.to(tl.bfloat16))
'''
)
DESCRIPTOR = (
    toy.HEAD
    + '''def copy(a, y, N: tl.constexpr):
    """a tile by a descriptor that is made on the device"""
    there = tl.make_tensor_descriptor(a, [N, N], [N, 1], [64, 64])
    at = tl.arange(0, 64)
    tl.store(y + at[:, None] * 64 + at[None, :], there.load([0, 0]))
'''
)


def matmul(stages: int) -> TritonUnit:
    constants = (("K", 4096), ("SIDE", 128), ("DEPTH", 128))
    signature = toy.pointers("a", "b", "y")
    unit = TritonUnit("matmul", MATMUL, "matmul", signature, constants, 8, stages)
    return replace(unit, tile=f"rows 128, outputs 128, stages {stages}")


ILLEGAL = {
    "spills": (
        toy.gemv(outputs=64),
        80,
        r"gemv \(outputs 64, depth 512, warps 4\) on sm_80 spills registers: \d+ bytes",
    ),
    "shared memory": (
        matmul(4),
        90,
        r"matmul \(rows 128, outputs 128, stages 4\) on sm_90 takes \d+ bytes of shared memory"
        r" \(limit: 232448\)",
    ),
    "scratch": (
        TritonUnit("copy", DESCRIPTOR, "copy", toy.pointers("a", "y"), (("N", 256),)),
        90,
        r"copy on sm_90 asks for \d+ bytes of global scratch a block",
    ),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_illegal_kernels_name_kernel_tile_and_limit(store: Store, case: str) -> None:
    unit, sm, text = ILLEGAL[case]
    fine = replace(toy.add(), sms=(sm,))
    for _ in range(2):  # a verdict comes from the store too
        with pytest.raises(IllegalKernel, match=text) as caught:
            build(store, unit, fine, sms=(sm,))
        (fault,) = caught.value.faults
        assert (fault.kernel, fault.sm, fault.tile) == (unit.name, sm, unit.tile)
    steps: list[BuildStep] = []
    build(store, fine, sms=(sm,), progress=steps.append)
    assert [step.cached for step in steps] == [True]


def test_a_legal_matmul_is_legal(store: Store) -> None:
    (kernel,) = build(store, matmul(2))
    assert "wgmma" in kernel.ptx.read_text() and kernel.image.shared_bytes > 48 << 10


GIVEN_DESCRIPTOR = (
    toy.HEAD
    + '''def copy(there, y, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """a tile by a descriptor that the launch brings"""
    at = tl.arange(0, ROWS)
    to = tl.arange(0, WIDE)
    tl.store(y + at[:, None] * WIDE + to[None, :], there.load([0, 0]))
'''
)


@pytest.mark.parametrize("wide, swizzle, columns", [(64, 3, 64), (32, 2, 32), (128, 3, 64)])
def test_a_given_descriptor_says_how_it_is_copied(
    store: Store, wide: int, swizzle: int, columns: int
) -> None:
    signature = (Argument("there", descriptor_type("bf16", 16, wide)), *toy.pointers("y"))
    constants = (("ROWS", 16), ("WIDE", wide))
    unit = TritonUnit("copy", GIVEN_DESCRIPTOR, "copy", signature, constants)
    for kernel in build(store, unit, sms=(90, 100, 120)):
        assert kernel.image.boxes == (BoxImage(9, swizzle, 16, columns),)
        assert "cp.async.bulk.tensor" in kernel.ptx.read_text()
    with pytest.raises(CompileFailed, match="sm_89 has no descriptors"):
        build(store, unit, sms=(89,))
