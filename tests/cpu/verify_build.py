"""Owns small builds for tests of `verify`: two layers, two plans, one instruction set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from kernelgen.archs.architecture import Architecture
from kernelgen.archs.registry import architectures
from kernelgen.codegen.artefact import KernelSource
from kernelgen.codegen.cpp.program import CppProgram, cpp_program
from kernelgen.codegen.families import catalogue
from kernelgen.codegen.manifest import (
    CheckpointTensor,
    Identity,
    Library,
    cpu_target,
    kernel_list,
    manifest,
)
from kernelgen.compile.cpp import CppSource, compile_cpp
from kernelgen.compile.store import Store
from kernelgen.core.dtypes import dtype as dtype_named
from kernelgen.core.files import write_tree
from kernelgen.core.jsonio import dumps_readable
from kernelgen.formats.stored import StoredMatrix
from kernelgen.hw import parse_target
from kernelgen.ir.graph import Graph
from kernelgen.planner.planner import Planner
from kernelgen.spec.config import read_config
from kernelgen.spec.model import ModelSpec

ISA = "avx2"
SIZES = {"decode": 8, "mixed": 128}
Mutate = Callable[[KernelSource], str]
"""the text of a kernel, sabotaged or as it is"""


@dataclass(frozen=True)
class Small:
    """Two layers of the tiny config that has windows, sinks or biases: the richest one there is."""

    architecture: Architecture
    spec: ModelSpec

    def graph(self, dtype: str) -> Graph:
        return self.architecture.lower(self.spec, dtype_named(dtype))


def small() -> Small:
    """The first architecture whose tiny config has a layer with a window beside one without."""
    for architecture in architectures().values():
        spec = architecture.read(read_config(architecture.folder / "tiny.json"))
        windows = [layer.attention.window is not None for layer in spec.layers[:2]]
        if any(windows) and not all(windows):
            return Small(architecture, replace(spec, layers=spec.layers[:2]))
    raise AssertionError("no architecture has a window layer among its first two")


def program(subject: Small, dtype: str, *, fusion: bool = True) -> CppProgram:
    device = parse_target("cpu")
    planner = Planner(subject.graph(dtype), device, device.target, catalogue(device), fusion)
    plans = [planner.plan(phase, size) for phase, size in SIZES.items()]
    return cpp_program(plans, subject.spec.vocab, subject.spec.max_positions)


def build(
    folder: Path,
    subject: Small,
    dtype: str,
    *,
    fusion: bool = True,
    mutations: Mapping[str, Mutate] | None = None,
    isa: str = ISA,
    matrices: Mapping[str, StoredMatrix] | None = None,
) -> Path:
    """A build folder as `build` writes it, kernels named in `mutations` with another text."""
    made = program(subject, dtype, fusion=fusion)
    units = dict(made.units)
    for source in made.kernels:
        if mutations and source.kernel.name in mutations:
            units[source.path] = mutations[source.kernel.name](source)
    graph = subject.graph(dtype)
    tensors = [
        CheckpointTensor(t.name, t.shape, t.parameter, t.take, t.expert)
        for t in subject.architecture.checkpoint(subject.spec, graph)
    ]
    identity = Identity("small", "0", "kernelgen test", dtype, {})
    path = f"lib/cpu_{isa}.so"
    about = manifest(
        identity,
        subject.spec,
        [cpu_target(made, [Library(isa, path, True)])],
        tensors,
        subject.architecture.ignored(subject.spec),
        matrices or {},
    )
    files = {
        "manifest.json": dumps_readable(about).encode(),
        "kernels.json": dumps_readable(kernel_list(made)).encode(),
    }
    for p in made.plans:
        files[f"plans/{p.phase}_{p.size}.json"] = dumps_readable(p.to_json()).encode()
    store = Store()
    with store.session():
        sources = [CppSource(name, text) for name, text in sorted(units.items())]
        (library,) = compile_cpp(sources, isas=[isa], store=store, headers=made.headers, jobs=2)
        files[path] = library.path.read_bytes()
    write_tree(folder, files)
    return folder


def checkpoint(folder: Path, subject: Small) -> Path:
    """Random weights under the names that the architecture's rules say."""
    made = torch.Generator().manual_seed(3)
    tensors = {}
    for rule in subject.architecture.checkpoint(subject.spec, subject.graph("float32")):
        random = torch.randn(rule.shape, generator=made)
        scale = rule.shape[-1] ** -0.5 if len(rule.shape) > 1 else 0.3
        tensors[rule.name] = random * scale + (len(rule.shape) == 1)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return folder
