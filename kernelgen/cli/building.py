"""Owns the second half of the pipeline: plans → sources → libraries → build folder → wheel."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelgen import __version__
from kernelgen.cli.model import ModelSource
from kernelgen.cli.pipeline import Lowered, all_plans, lowered
from kernelgen.cli.tuned import refuse_untuned
from kernelgen.codegen.cpp.program import cpp_program
from kernelgen.codegen.cuda.host import StepProgram, cuda_headers, cuda_step, workspace_bytes
from kernelgen.codegen.cuda.program import cuda_program
from kernelgen.codegen.manifest import (
    CheckpointTensor,
    Identity,
    Library,
    TargetBuild,
    cpu_target,
    gpu_kernel_list,
    kernel_list,
    manifest,
)
from kernelgen.compile.cpp import CppSource, compile_cpp
from kernelgen.compile.isa import machine_isas
from kernelgen.compile.store import Store
from kernelgen.compile.toolchain import find_toolchain
from kernelgen.compile.units import Blob
from kernelgen.core.errors import UsageError
from kernelgen.core.files import explain_os_errors, refuse_unwritable, staged_folder, write_tree
from kernelgen.core.resources import tables_dir
from kernelgen.hw import Device, parse_target
from kernelgen.lower.float8_cache import without_scales
from kernelgen.pack.bundle import MANIFEST, pack, package_name
from kernelgen.report.tuning_text import phase_coverage
from kernelgen.tables import Tables

if TYPE_CHECKING:
    from kernelgen.compile.triton import CompiledKernel

ISAS = ("avx512_bf16", "avx512", "avx2")
_CPUINFO = Path("/proc/cpuinfo")

Progress = Callable[[Any], None]


@dataclass(frozen=True)
class BuildResult:
    """What a build has written, and how much of it came from the cache."""

    wheel: str
    folder: str
    seconds: float
    steps: int
    cached: int
    coverage: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """target → phase → verdict → launches, and their share of the predicted time"""
    notes: Sequence[str] = ()
    """of the weights' formats"""


@dataclass
class _Build:
    """One run of `build_model`: where things come from and go to."""

    model: Lowered
    fusion: bool
    isas: tuple[str, ...]
    store: Store
    jobs: int | None
    progress: Progress | None
    tables: Tables
    require_tuned: bool
    invariant: bool
    steps: list[Any] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def note(self, step: Any) -> None:
        """Count a step and hand it to the display."""
        self.steps.append(step)
        if self.progress is not None:
            self.progress(step)

    def add_texts(self, texts: Mapping[str, str]) -> None:
        """Readable files of the build folder."""
        self.files |= {path: text.encode() for path, text in texts.items()}


def build_model(
    source: ModelSource,
    targets: Sequence[str],
    out: Path,
    *,
    jobs: int | None = None,
    fusion: bool = True,
    dtype: str = "bfloat16",
    isas: Sequence[str] = ISAS,
    progress: Progress | None = None,
    tables: Tables | None = None,
    require_tuned: bool = False,
    online: Path | None = None,
    invariant: bool = False,
    cache: str = "auto",
) -> BuildResult:
    """Everything from config to wheel. The build folder appears under `out` in one rename.

    `isas` are the instruction sets that the CPU target is compiled for, best first. `tables`:
    without them those that ship. `require_tuned`: `CheckFailed`, before anything is compiled, where
    a GPU plan has a kernel that nobody has measured. `online`: a file that says which matrices are
    quantised when they are loaded. `invariant`: a token has the same bits in every batch.
    `cache`: type of keys and values, see `lowered`.
    """
    started = time.perf_counter()
    folder = out / source.name
    package_name(source.name)
    _refuse_other_content(folder)
    refuse_unwritable(out / f"{source.name}.whl")
    build = _Build(
        lowered(source, dtype, online, cache),
        fusion,
        tuple(isas),
        Store(),
        jobs,
        progress,
        tables or Tables(tables_dir()),
        require_tuned,
        invariant,
    )
    devices = [parse_target(target) for target in targets]
    with build.store.session():
        made = [_target(build, device) for device in devices]
        build.files[MANIFEST] = _json(_manifest(source, build.model, dtype, made))
        with staged_folder(folder) as stage:
            write_tree(stage, build.files)
    wheel = pack(folder, out)
    return BuildResult(
        wheel=str(wheel),
        folder=str(folder),
        seconds=time.perf_counter() - started,
        steps=len(build.steps),
        cached=sum(1 for step in build.steps if step.cached),
        coverage={target.target: _coverage(target) for target in made},
        notes=build.model.notes,
    )


def _coverage(target: TargetBuild) -> dict[str, Any]:
    return phase_coverage({f"{p.phase} {p.size}": p.coverage() for p in target.plans})


def _refuse_other_content(folder: Path) -> None:
    """A build replaces an earlier build, never another folder: it may hold the checkpoint."""
    with explain_os_errors(folder):
        if not folder.exists():
            return
        if folder.is_dir() and ((folder / MANIFEST).is_file() or not any(folder.iterdir())):
            return
    raise UsageError(
        "is in the way: it is no earlier build, and a build would replace it",
        where=str(folder),
        hint="choose another --out",
    )


def _target(build: _Build, device: Device) -> TargetBuild:
    """Plans, sources and libraries of one target."""
    made = _cpu(build, device) if device.is_cpu else _gpu(build, device)
    for plan in made.plans:
        path = f"plans/{device.sm_name}_{plan.phase}_{plan.size}.json"
        build.files[path] = _json(plan.to_json())
    return made


def _cpu(build: _Build, device: Device) -> TargetBuild:
    """C++ kernels for every instruction set."""
    spec = build.model.spec
    plans = all_plans(build.model.graph, device, build.fusion, invariant=build.invariant)
    program = cpp_program(plans, spec.vocab, spec.max_positions)
    units = [CppSource(path, text) for path, text in sorted(program.units.items())]
    compiled = compile_cpp(
        units,
        isas=build.isas,
        store=build.store,
        headers=program.headers,
        jobs=build.jobs,
        progress=build.note,
    )
    here = machine_isas(_CPUINFO.read_text()) if _CPUINFO.exists() else ()
    build.add_texts(program.units | program.headers)
    build.files["kernels.json"] = _json(kernel_list(program))
    build.files |= {f"lib/cpu_{lib.isa}.so": lib.path.read_bytes() for lib in compiled}
    return cpu_target(
        program, [Library(lib.isa, f"lib/cpu_{lib.isa}.so", lib.isa in here) for lib in compiled]
    )


def _compiled(build: _Build, device: Device) -> tuple[StepProgram, tuple[CompiledKernel, ...]]:
    """Plans whose kernels all compile within the device's limits.

    Registers are known only once a kernel is compiled: a tile that spills is excluded and the plans
    are made again. What has been compiled, and what was found illegal, comes from the store.
    """
    from kernelgen.compile.triton import IllegalKernel, compile_triton

    spec = build.model.spec
    while True:
        plans = all_plans(
            build.model.graph,
            device,
            build.fusion,
            build.tables,
            build.require_tuned,
            build.invariant,
        )
        refuse_untuned(plans, build.model.graph.name, device.target)
        step = cuda_program(plans, device.sm, spec.vocab, spec.max_positions, device.refused_tiles)
        try:
            return step, compile_triton(
                step.units(),
                sms=[device.sm],
                store=build.store,
                jobs=build.jobs,
                progress=build.note,
            )
        except IllegalKernel as error:
            refused = device.refused_tiles | {fault.tile for fault in error.faults if fault.tile}
            if refused == device.refused_tiles:
                raise
            device = replace(device, refused_tiles=refused)


def _gpu(build: _Build, device: Device) -> TargetBuild:
    """Triton kernels ahead of time, and the host program that launches them."""
    step, kernels = _compiled(build, device)
    plans = step.plans
    images = {kernel.name: kernel.image for kernel in kernels}
    blobs = tuple(Blob(f"{step.folder}/{k.name}.cubin", k.cubin) for k in kernels)
    host = cuda_step(step, images)
    units = [CppSource(path, text, blobs=blobs) for path, text in host.items()]
    (library,) = compile_cpp(
        units,
        isas=[device.sm_name],
        store=build.store,
        headers=cuda_headers(),
        jobs=build.jobs,
        progress=build.note,
    )
    texts = {f"{step.folder}/{unit.name}.py": unit.text for unit in step.units()}
    build.add_texts(texts | host | cuda_headers())
    build.files[f"{step.folder}/kernels.json"] = _json(gpu_kernel_list(step))
    build.files[f"{step.folder}/report.json"] = _json(
        {name: asdict(image) for name, image in sorted(images.items())}
    )
    path = f"lib/cuda_{device.sm_name}.so"
    build.files[path] = library.path.read_bytes()
    return TargetBuild(
        target=device.target,
        libraries=[Library(device.sm_name, path, False)],
        weights=step.weights,
        cache=step.cache,
        args=step.args,
        plans=plans,
        workspace_bytes=[workspace_bytes(plan, step.args) for plan in plans],
        sources=texts | host,
        device_names=device.driver_names,
        rules=step.rules,
        counters=max(plan.counters for plan in plans),
    )


def _manifest(
    source: ModelSource, model: Lowered, dtype: str, targets: Sequence[TargetBuild]
) -> dict[str, Any]:
    """What the runtime reads first."""
    tools = find_toolchain()
    identity = Identity(
        name=source.name,
        version=__version__,
        generator=f"kernelgen {__version__}",
        activation_dtype=dtype,
        toolchain={"c++": tools.version, "tvm_ffi": tools.tvm_ffi},
    )
    rules = model.architecture.checkpoint(model.spec, without_scales(model.graph))
    tensors = [
        CheckpointTensor(t.name, t.shape, t.parameter, t.take, t.expert)
        for t in rules
        if t.parameter not in model.matrices
    ]
    return manifest(
        identity,
        model.spec,
        targets,
        tensors,
        model.ignored,
        model.matrices,
        config=model.told,
        scalars=model.scalars,
    )


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()
