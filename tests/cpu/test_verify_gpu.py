"""Checks of a GPU's kernels, run without one: a library of references passes, a spoiled one not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_library import SIZES, HostGpu, ReferenceLibrary, Spoil, gpu_build
from verify_build import build, small

from kernelgen.core.errors import KernelgenError, UsageError
from kernelgen.ir.op import Trait
from kernelgen.verify.built import Built, BuiltKernel, read_build
from kernelgen.verify.checks import Check
from kernelgen.verify.gpu import Zoned, check_gpu
from kernelgen.verify.kernel_checks import check_kernel
from kernelgen.verify.library import KernelLibrary
from kernelgen.verify.place import Host
from kernelgen.verify.step_checks import check_prepare, check_steps


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = gpu_build(tmp_path_factory.mktemp("gpu") / "b", small(), "bfloat16")
    return read_build(folder, "sm_90")


def checks_of(built: Built, kernel: BuiltKernel, spoil: Spoil) -> list[Check]:
    """What is found where `spoil` follows every run of the kernel."""

    def behind(name: str, buffers: dict[str, Any]) -> None:
        if name == kernel.name:
            spoil(name, buffers)

    library: Any = ReferenceLibrary(built, behind)
    return check_kernel(built, kernel, library, HostGpu(), lambda step: None)


def kernel_with(built: Built, trait: Trait) -> BuiltKernel:
    """The first kernel that has such an op and rows for results."""
    return next(
        k for k in built.kernels if k.outputs and any(n.op.has(trait) for n in k.block.nodes)
    )


def missed(checks: list[Check]) -> set[str]:
    return {c.what for c in checks if not c.passed}


def test_a_gpu_build_is_read_back(built: Built) -> None:
    assert built.on_gpu and built.manifest["target"] == "sm_90:h200"
    assert built.libraries() == {"sm_90": built.folder / "lib/cuda_sm_90.so"}
    assert [(p.number, p.phase, p.size) for p in built.plans] == [
        (i, *size) for i, size in enumerate(SIZES)
    ]
    used = {use.number for kernel in built.kernels for use in kernel.uses}
    assert used == {0, 1, 2}
    roles = {o.role for kernel in built.kernels for o in kernel.operands}
    assert roles == {"input", "weight", "output", "cache", "step", "scratch", "counters"}
    with pytest.raises(UsageError, match="was not built for the CPU"):
        read_build(built.folder)
    with pytest.raises(UsageError, match="was not built for sm_80"):
        read_build(built.folder, "sm_80")


def test_kernels_that_are_their_references_pass(built: Built) -> None:
    """Every kernel, every tile: scenarios, layouts and bookkeeping of a GPU, without one."""
    for kernel in built.kernels:
        library: Any = ReferenceLibrary(built)
        checks = check_kernel(built, kernel, library, HostGpu(), lambda step: None)
        assert not missed(checks), [c for c in checks if not c.passed]
        assert {use.number for use in kernel.uses} == set(library.plans)
        kinds = {c.what for c in checks}
        assert {"values", "memory", "again"} <= kinds and kinds <= {
            *("values", "memory", "again", "poison")
        }


def far_row(name: str, buffers: dict[str, Any]) -> None:
    """Writes a row of the plan that the step does not use."""
    buffers["attn"][-1] = 0


def counter(name: str, buffers: dict[str, Any]) -> None:
    buffers["counters"][0] = 1


def one_more(name: str, buffers: dict[str, Any]) -> None:
    buffers["attn"][0, 0] += 0.0625


def null_page(name: str, buffers: dict[str, Any]) -> None:
    buffers["cache"][0, 5] = 1


def restless() -> Spoil:
    calls = iter(range(1 << 20))

    def spoil(name: str, buffers: dict[str, Any]) -> None:
        buffers["attn"][0, 0, 0] *= 1 + 2.0**-7 * (next(calls) % 2)

    return spoil


SPOILT: dict[str, tuple[Callable[[], Spoil], str]] = {
    "a row behind the step's": (lambda: far_row, "memory"),
    "a counter left": (lambda: counter, "memory"),
    "a wrong number": (lambda: one_more, "values"),
    "the null page": (lambda: null_page, "memory"),
    "other bits again": (restless, "again"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoiled_kernel_is_found(built: Built, what: str) -> None:
    spoil, check = SPOILT[what]
    victim = kernel_with(built, Trait.ATTENTION)
    assert [o.name for o in victim.outputs] == ["attn"]
    found = checks_of(built, victim, spoil())
    assert check in missed(found), [c for c in found if not c.passed]


def test_a_key_of_another_layer_is_found(built: Built) -> None:
    """Layers are told apart: the place of one is not that of the next."""
    victim = next(k for k in built.kernels if k.written_state is not None)
    stride = built.manifest["cache"]["page_bytes"] // 2

    def shifted(name: str, buffers: dict[str, Any]) -> None:
        buffers["cache"][1:] = buffers["cache"][1:].roll(stride, dims=1)

    assert missed(checks_of(built, victim, shifted)) >= {"memory"}


def test_prepared_values(built: Built) -> None:
    def checked(spoil: Spoil | None = None) -> Check:
        library: Any = ReferenceLibrary(built, spoil) if spoil else ReferenceLibrary(built)
        (check,) = check_prepare(built, library, HostGpu(), lambda step: None)
        return check

    good = checked()
    assert good.passed and good.cases > len(SIZES), good
    for name in ("token_ids", "positions", "rows"):

        def spoil(kernel: str, buffers: dict[str, Any], name: str = name) -> None:
            buffers[name][-1] += 1

        bad = checked(spoil)
        assert not bad.passed and name in bad.detail


def test_a_zone_shows_what_was_written_around_a_buffer() -> None:
    zoned = Zoned((3, 5), "float32", "cpu")
    assert torch.isnan(zoned.tensor).all() and zoned.damage() == 0
    flat = zoned.tensor.as_strided((17,), (1,), zoned.tensor.storage_offset() - 1)
    flat[0], flat[16] = 1.0, 1.0
    assert zoned.damage() > 1 and torch.isnan(zoned.content).all()


def test_without_a_gpu_it_is_said_at_once() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    with pytest.raises(KernelgenError, match="verify runs kernels for sm_90, and torch"):
        check_gpu("sm_90")


def test_whole_steps_of_a_library(tmp_path: Path) -> None:
    """The checks of steps on a library that this machine runs, then on one that they find out."""
    made = read_build(build(tmp_path / "b", small(), "float32"))
    ((isa, path),) = made.libraries().items()
    library = KernelLibrary(path, isa)
    checks = check_steps(made, library, Host(), lambda step: None)
    assert all(c.passed for c in checks), [c for c in checks if not c.passed]
    assert {c.what for c in checks} == {"finite", "poison", "replay", "unread", "memory"}
    assert next(c for c in checks if c.what == "replay").cases == 2  # one size, and one less

    class Careless:
        """Reads what it must not: the logits of the step before."""

        def __init__(self) -> None:
            self.logits: Any = None

        def bind(self, name: str, tensor: Any) -> None:
            self.logits = tensor if name == "logits" else self.logits
            library.bind(name, tensor)

        def step(self, plan: int, args: Any) -> None:
            stale = self.logits[0, 0].clone()
            library.step(plan, args)
            self.logits[0, 1] += 0 * stale

    careless: Any = Careless()
    found = {c.what for c in check_steps(made, careless, Host(), lambda s: None) if not c.passed}
    assert {"poison", "finite"} <= found
