"""Owns the pipeline behind the commands: config → spec → graph → plans → sources → libraries → wheel."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelgen import __version__
from kernelgen.archs.architecture import Architecture
from kernelgen.archs.registry import find_architecture
from kernelgen.cli.model import ModelSource
from kernelgen.codegen.families import catalogue
from kernelgen.core.dtypes import dtype as dtype_named
from kernelgen.core.errors import UnsupportedError
from kernelgen.hw import parse_target
from kernelgen.ir.graph import Graph
from kernelgen.planner.plan import Plan
from kernelgen.planner.planner import Planner
from kernelgen.spec.model import ModelSpec

DECODE_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MIXED_SIZES = (128, 512, 2048, 8192)
ISAS = ("avx512_bf16", "avx512", "avx2")

Progress = Callable[[Any], None]


@dataclass(frozen=True)
class Lowered:
    """A model as far as it does not depend on a target."""

    architecture: Architecture
    spec: ModelSpec
    graph: Graph


@dataclass(frozen=True)
class BuildResult:
    """What a build has written, and how much of it came from the cache."""

    wheel: str
    folder: str
    seconds: float
    steps: int
    cached: int


def lowered(source: ModelSource, dtype: str) -> Lowered:
    """Config → spec → graph."""
    architecture = find_architecture(source.config)
    spec = architecture.read(source.config)
    graph = replace(architecture.lower(spec, dtype_named(dtype)), name=source.name)
    return Lowered(architecture, spec, graph)


def plan_model(
    source: ModelSource,
    target: str,
    *,
    phase: str,
    size: int,
    context: int = 1024,
    fusion: bool = True,
    dtype: str = "bfloat16",
) -> Plan:
    """The plan of one phase at one size; imports neither torch nor triton."""
    device = parse_target(target)
    graph = lowered(source, dtype).graph
    planner = Planner(graph, device, device.target, catalogue(device), fusion, context)
    return planner.plan(phase, size)


def all_plans(graph: Graph, target: str, fusion: bool) -> tuple[Plan, ...]:
    """A plan for every size of the manifest's ladder, decode first."""
    device = parse_target(target)
    planner = Planner(graph, device, device.target, catalogue(device), fusion)
    decode = tuple(planner.plan("decode", size) for size in DECODE_SIZES)
    return decode + tuple(planner.plan("mixed", size) for size in MIXED_SIZES)


def build_model(
    source: ModelSource,
    targets: Sequence[str],
    out: Path,
    *,
    jobs: int | None = None,
    fusion: bool = True,
    dtype: str = "bfloat16",
    progress: Progress | None = None,
) -> BuildResult:
    """Everything from config to wheel. The build folder appears under `out` in one rename."""
    from kernelgen.codegen.cpp.program import cpp_program
    from kernelgen.compile.cpp import CppSource, compile_cpp
    from kernelgen.compile.store import Store
    from kernelgen.core.files import staged_folder, write_tree
    from kernelgen.pack.bundle import pack

    started = time.perf_counter()
    if list(targets) != ["cpu"]:
        raise UnsupportedError(f"cannot build for {', '.join(targets)} yet", allowed="cpu")
    model = lowered(source, dtype)
    plans = all_plans(model.graph, "cpu", fusion)
    program = cpp_program(plans, model.spec.vocab, model.spec.max_positions)
    steps: list[Any] = []

    def note(step: Any) -> None:
        steps.append(step)
        if progress is not None:
            progress(step)

    units = [CppSource(path, text) for path, text in sorted(program.units.items())]
    store = Store()
    with store.session():
        libraries = compile_cpp(
            units, isas=ISAS, store=store, headers=program.headers, jobs=jobs, progress=note
        )
        files = _build_files(source, model, dtype, program, libraries)
        folder = out / source.name
        with staged_folder(folder) as stage:
            write_tree(stage, files)
    wheel = pack(folder, out)
    return BuildResult(
        wheel=str(wheel),
        folder=str(folder),
        seconds=time.perf_counter() - started,
        steps=len(steps),
        cached=sum(1 for s in steps if s.cached),
    )


def _build_files(
    source: ModelSource, model: Lowered, dtype: str, program: Any, libraries: Sequence[Any]
) -> dict[str, bytes]:
    """The build folder: readable sources, plans, manifest and libraries."""
    from kernelgen.codegen.manifest import (
        CheckpointTensor,
        Identity,
        Library,
        cpu_target,
        kernel_list,
        manifest,
    )
    from kernelgen.compile.isa import machine_isas
    from kernelgen.compile.toolchain import find_toolchain

    here = machine_isas(Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else ()
    identity = Identity(
        name=source.name,
        version=__version__,
        generator=f"kernelgen {__version__}",
        activation_dtype=dtype,
        toolchain={"c++": find_toolchain().version, "tvm_ffi": find_toolchain().tvm_ffi},
    )
    tensors = [
        CheckpointTensor(t.name, t.shape, t.parameter)
        for t in model.architecture.checkpoint(model.spec, model.graph)
    ]
    made = manifest(
        identity,
        model.spec,
        [
            cpu_target(
                program,
                [Library(lib.isa, f"lib/cpu_{lib.isa}.so", lib.isa in here) for lib in libraries],
            )
        ],
        tensors,
        model.architecture.ignored(model.spec),
    )
    files = {f"lib/cpu_{lib.isa}.so": lib.path.read_bytes() for lib in libraries}
    files |= {path: text.encode() for path, text in (program.units | program.headers).items()}
    files["manifest.json"] = _json(made)
    files["kernels.json"] = _json(kernel_list(program))
    files |= {f"plans/{p.phase}_{p.size}.json": _json(p.to_json()) for p in program.plans}
    return files


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()
