"""Owns `verify` from model or build to report: its kernels, then the whole model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelgen.cli.building import build_model
from kernelgen.cli.model import ModelSource, resolve
from kernelgen.cli.pipeline import lowered
from kernelgen.core.errors import UsageError
from kernelgen.hw import parse_target
from kernelgen.ir.graph import Graph
from kernelgen.verify.checks import Report

if TYPE_CHECKING:
    from kernelgen.verify.built import Built
    from kernelgen.verify.checks import Check
    from kernelgen.verify.model_cases import Case

_RECORDED = "cases.npz"


def verify_model(
    source: ModelSource,
    target: str,
    *,
    reference: Path | None = None,
    fusion: bool = True,
    dtype: str = "float32",
    isas: tuple[str, ...] | None = None,
    progress: Callable[[Any], None] | None = None,
) -> Report:
    """Builds the model and checks every kernel, then the model against recorded cases.

    `reference`: the recorded cases, else `cases.npz` in the checkpoint's folder, else what the
    references of the ops give in float64. `isas`: libraries whose kernels are checked (see
    `check_kernels`); the model itself runs on the best one. Raises what `build_model` raises,
    `KernelgenError` where the target's GPU is not here, and `UsageError` for files that do not hold
    what they must.
    """
    from kernelgen.verify.built import read_build

    _check_device(target)
    recorded = _recorded(source, reference)
    with tempfile.TemporaryDirectory(prefix="kernelgen-verify-") as folder:
        made = build_model(
            source, [target], Path(folder), fusion=fusion, dtype=dtype, progress=progress
        )
        built = read_build(Path(made.folder), target)
        checks, notes = _checked(built, source, recorded, isas, progress)
    return Report(source.name, target, dtype, fusion, checks, notes)


def verify_build(
    folder: Path,
    target: str,
    *,
    weights: Path | None = None,
    reference: Path | None = None,
    progress: Callable[[Any], None] | None = None,
) -> Report:
    """Checks a build as it is; nothing is compiled.

    `weights`: its checkpoint, without which kernels and steps are checked on random weights and the
    model is not. Raises `KernelgenError` where the target's GPU is not here, and `UsageError` for
    files that do not hold what they must.
    """
    from kernelgen.verify.built import read_build

    built = read_build(folder, target)
    _check_device(target)
    if reference is not None and weights is None:
        raise UsageError("recorded cases need weights", where=str(reference), hint="--weights DIR")
    source = resolve(str(weights)) if weights is not None else None
    recorded = _recorded(source, reference) if source is not None else None
    checks, notes = _checked(built, source, recorded, None, progress)
    name, dtype = built.manifest["name"], built.manifest["activation_dtype"]
    return Report(name, built.manifest["target"], dtype, True, checks, notes)


def sanitize_build(
    folder: Path,
    target: str,
    tools: tuple[str, ...],
    *,
    progress: Callable[[Any], None] | None = None,
) -> Report:
    """Launches a GPU build's kernels under tools of compute-sanitizer; nothing is compared.

    Raises `UnsupportedError` where the program or the target's GPU is not here.
    """
    from kernelgen.verify.built import read_build
    from kernelgen.verify.sanitizer import check_watched, find_sanitizer

    device = parse_target(target)
    if device.is_cpu:
        raise UsageError("watches kernels of GPUs", where="--sanitizer", hint="--target sm_90")
    built = read_build(folder, target)
    find_sanitizer()
    _check_device(target)
    checks: tuple[Check, ...] = ()
    for tool in tools:
        checks += check_watched(built, device.sm_name, tool, progress)
    name, dtype = built.manifest["name"], built.manifest["activation_dtype"]
    notes = ("launched, not compared with references",)
    return Report(name, built.manifest["target"], dtype, True, checks, notes)


def _check_device(target: str) -> None:
    """Said before anything is built."""
    from kernelgen.verify.gpu import check_gpu

    device = parse_target(target)
    if not device.is_cpu:
        check_gpu(device.sm_name)


def _checked(
    built: Built,
    source: ModelSource | None,
    recorded: tuple[Case, ...] | None,
    isas: tuple[str, ...] | None,
    progress: Callable[[Any], None] | None,
) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """Kernels, then the model where there are weights; and what was left out."""
    from kernelgen.verify.following import check_following
    from kernelgen.verify.model_checks import ModelUnderTest, check_model
    from kernelgen.verify.supervisor import check_kernels

    checks = check_kernels(built, isas=isas, progress=progress)
    checks += check_following(built, None)
    notes: tuple[str, ...] = ()
    if built.left_out:
        names = ", ".join(built.left_out)
        notes = (f"not by themselves, only as parts of the model: {names}",)
    if source is None or source.folder is None or not any(source.folder.glob("*.safetensors")):
        where = "given" if source is None else "beside the config"
        return checks, (*notes, f"the model itself was not run: there are no weights {where}")
    if recorded is None:
        notes = (*notes, f"no {_RECORDED}: the model was checked against its ops' references")
    cases = completed_cases(source, built, recorded)
    model = ModelUnderTest(built, source.folder)
    return checks + check_model(model, cases, progress=progress), notes


def _recorded(source: ModelSource, reference: Path | None) -> tuple[Case, ...] | None:
    """Read before anything is built, so that a wrong file is said at once."""
    from kernelgen.verify.model_cases import read_cases

    if reference is not None:
        if source.folder is None:
            folder = "a checkpoint folder"
            raise UsageError("recorded cases need weights", where=source.given, allowed=folder)
        return read_cases(reference)
    beside = source.folder / _RECORDED if source.folder else None
    return read_cases(beside) if beside is not None and beside.is_file() else None


def completed_cases(
    source: ModelSource, built: Built, recorded: tuple[Case, ...] | None
) -> tuple[Case, ...]:
    """The recorded cases, or our own; each with a bfloat16 run where the bound is taken from it.

    Quantised matrices are what their codes and scales stand for; what was recorded of a model
    before it was quantised says nothing of it.
    """
    from kernelgen.ir.reformat import with_formats
    from kernelgen.lower.float8_cache import with_float8_cache
    from kernelgen.verify.own_cases import own_cases, with_narrow_runs
    from kernelgen.verify.parameters import load_parameters
    from kernelgen.verify.quantised import cache_scales, load_matrices, load_scales, packed_matrices

    dtype, packed = built.manifest["activation_dtype"], packed_matrices(built.manifest)
    scaled = cache_scales(built.manifest)
    if scaled or any(matrix.packing is None for matrix in packed.values()):
        recorded = None
    narrow = dtype == "bfloat16"
    if recorded is not None and (not narrow or all(case.narrow for case in recorded)):
        return recorded
    wide = lowered(source, "float32", cache="float32")
    assert source.folder is not None, "asked only where there are weights"
    rules = wide.architecture.checkpoint(wide.spec, wide.graph)
    plain = [rule for rule in rules if rule.parameter not in packed]
    parameters = load_parameters(source.folder, plain) | load_matrices(source.folder, packed)
    parameters |= load_scales(source.folder, scaled)
    kinds = {name: matrix.kind for name, matrix in packed.items()}

    def as_built(graph: Graph) -> Graph:
        graph = with_formats(graph, kinds)
        return with_float8_cache(graph) if scaled else graph

    cases = recorded or own_cases(as_built(wide.graph), parameters, wide.spec.vocab)
    if not narrow:
        return cases
    small = lowered(source, dtype, cache=dtype)
    return with_narrow_runs(cases, as_built(small.graph), parameters)
