"""From Triton kernels to a library for each SM, driven by the stand-in driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gpu_toy
import gpu_toy_kernels as toy
import pytest
from fake_driver import build_driver, parameter_sizes, run_commands

from kernelgen.compile.store import Store
from kernelgen.compile.triton import CompiledKernel, compile_triton
from kernelgen.core.elf import read_library


@pytest.fixture(scope="module")
def kernels(store: Store) -> Mapping[int, Mapping[str, CompiledKernel]]:
    with store.session():
        made = compile_triton(gpu_toy.program().units(), sms=toy.SMS, store=store, jobs=2)
    return {sm: {k.name: k for k in made if k.sm == sm} for sm in toy.SMS}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


def library(sm: int, kernels: Mapping[str, CompiledKernel], store: Store) -> Path:
    with store.session():
        return gpu_toy.link(
            gpu_toy.program(sm),
            {name: kernel.image for name, kernel in kernels.items()},
            {name: kernel.cubin for name, kernel in kernels.items()},
            store,
        )


@pytest.mark.parametrize("sm", toy.SMS)
def test_a_step_of_compiled_kernels(
    sm: int,
    kernels: Mapping[int, Mapping[str, CompiledKernel]],
    store: Store,
    driver: Path,
    tmp_path: Path,
) -> None:
    mine = kernels[sm]
    built = library(sm, mine, store)
    data = built.read_bytes()
    for kernel in mine.values():
        assert kernel.cubin.read_bytes() in data
    facts = read_library(built)
    assert all(symbol.startswith("TVMFFI") for symbol in facts.undefined)
    types = {kernel.image.symbol: kernel.image.arguments for kernel in mine.values()}
    done = run_commands(
        built,
        [*gpu_toy.bind_all(), ["kg_isa"], ["step", 1, gpu_toy.args()]],
        driver=driver,
        log=tmp_path / "calls.log",
        FAKE_PARAMETERS=parameter_sizes(types),
        FAKE_SM=str(sm),
    ).fine()
    assert done.results[-2]["value"] == f"sm_{sm}"
    loads = [call for call in done.calls if call.startswith("cuModuleLoadData")]
    assert len(loads) == len(mine) and all("\x7fELF" in call for call in loads)
    assert len(done.launches) == 10
    for number, launch in enumerate(done.launches):
        image = next(k.image for k in mine.values() if k.image.symbol == launch.symbol)
        assert launch.block == (image.threads, 1, 1)
        assert launch.attributes == ({6: 1} if number and image.pdl else {})
        assert len(launch.values) == len(image.arguments) + 2 and launch.values[-2:] == (0, 0)


def test_libraries_are_reproducible(
    kernels: Mapping[int, Mapping[str, CompiledKernel]], store: Store, tmp_path: Path
) -> None:
    other = Store(tmp_path / "somewhere else")
    again = library(90, kernels[90], other)
    assert again.read_bytes() == library(90, kernels[90], store).read_bytes()
    assert b"/tmp" not in again.read_bytes()
