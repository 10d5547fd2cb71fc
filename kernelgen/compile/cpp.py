"""Owns the C++ toolchain: translation units to one shared library per instruction set."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelgen.compile.heads import HEADS, HEADS_TEXT, place_heads
from kernelgen.compile.jobs import Job, JobResult, default_jobs, run_jobs
from kernelgen.compile.store import Store
from kernelgen.compile.toolchain import CppToolchain, find_toolchain
from kernelgen.compile.units import LINK_FLAGS, Blob, CppSource, Unit, link_key, units_of
from kernelgen.core.elf import parse_library
from kernelgen.core.errors import Interrupted, KernelgenError
from kernelgen.core.files import disk_full, write_tree

__all__ = ("Blob", "BuildStep", "CompileFailed", "CppLibrary", "CppSource", "compile_cpp")


@dataclass(frozen=True)
class CppLibrary:
    """A linked library in the store; `path` is safe to copy while the store's session lasts."""

    isa: str
    path: Path
    units: int
    compiled: int


@dataclass(frozen=True)
class BuildStep:
    """One step of a build for a progress display; `cached` steps took no compiler."""

    done: int
    total: int
    label: str
    cached: bool
    seconds: float


class CompileFailed(KernelgenError):
    """A generated source that the compiler or the linker refuses."""

    template = "{what} does not compile: {lines}"


def compile_cpp(
    sources: Sequence[CppSource],
    *,
    isas: Sequence[str],
    store: Store,
    headers: Mapping[str, str] | None = None,
    jobs: int | None = None,
    progress: Callable[[BuildStep], None] | None = None,
) -> tuple[CppLibrary, ...]:
    """One library per name in `isas`, in that order; call it inside `store.session()`.

    A set `sm_90` is the host half of a library for that GPU. `headers` are files (relative path →
    text) that sources include by quotes; the macro `KG_ISA` is the set's name as a string.
    Equal inputs give byte-identical libraries in any folder.
    Raises `UnsupportedError` (no compiler), `CompileFailed`, `DiskFull`, and `Interrupted` on
    KeyboardInterrupt: units finished by then stay in the store.
    """
    return _CppBuild(sources, headers or {}, isas, store, progress).run(jobs or default_jobs())


class _CppBuild:
    """State of one `compile_cpp`."""

    def __init__(
        self,
        sources: Sequence[CppSource],
        headers: Mapping[str, str],
        isas: Sequence[str],
        store: Store,
        progress: Callable[[BuildStep], None] | None,
    ) -> None:
        self.tools: CppToolchain = find_toolchain()
        self.headers = dict(sorted(headers.items()))
        self.units = {name: units_of(sources, self.headers, name, self.tools) for name in isas}
        self.store = store
        self.progress = progress
        self.total = sum(len(units) + 1 for units in self.units.values())
        self.done = 0
        self.compiled: set[str] = set()

    def run(self, workers: int) -> tuple[CppLibrary, ...]:
        try:
            ready = {name: self._linked(units) for name, units in self.units.items()}
            todo = [unit for name in ready if not ready[name] for unit in self.units[name]]
            self._compile(todo, workers)
            return tuple(
                self._library(name, ready[name] or self._link(name, units), units)
                for name, units in self.units.items()
            )
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped after {self.done} of {self.total} steps",
                hint="repeat the command: finished units are kept",
            ) from None

    def _linked(self, units: Sequence[Unit]) -> Path | None:
        entry = self.store.get(link_key(units, self.tools))
        if entry is None:
            return None
        self._step(
            f"library {units[0].isa.name}" if units else "library", True, 0.0, len(units) + 1
        )
        return entry.path("library.so")

    def _library(self, name: str, path: Path, units: Sequence[Unit]) -> CppLibrary:
        return CppLibrary(name, path, len(units), sum(unit.key in self.compiled for unit in units))

    def _compile(self, units: Sequence[Unit], workers: int) -> None:
        todo: dict[str, Unit] = {}
        for unit in units:
            if self.store.get(unit.key):
                self._step(unit.label, True, 0.0)
            else:
                todo[unit.key] = unit
        # Long sources first: the last core is then not left with the longest unit.
        order = sorted(todo.values(), key=lambda unit: -len(unit.source.text))
        if not order:
            return
        with self.store.stage() as stage:
            write_tree(stage, {**self.headers, **{u.source.name: u.source.text for u in order}})
            _link_blobs(stage, order)
            heads = place_heads(order, stage, self.store, self.tools, workers)
            jobs = {self._job(unit, stage, heads.get(unit.isa.name, ())): unit for unit in order}
            run_jobs(list(jobs), workers, lambda result: self._compiled(jobs[result.job], result))

    def _job(self, unit: Unit, stage: Path, heads: tuple[str, ...]) -> Job:
        out = ("-c", unit.source.name, "-o", f"{unit.key}.o")
        argv = (self.tools.compiler, *unit.argv, *heads, *out)
        return Job(unit.label, argv, stage)

    def _compiled(self, unit: Unit, result: JobResult) -> None:
        if result.returncode:
            heads = {f"{unit.isa.name}/{HEADS}": HEADS_TEXT}
            files = {**self.headers, **heads, unit.source.name: unit.source.text}
            raise self._failed(unit.key, unit.label, files, result)
        path = result.job.cwd / f"{unit.key}.o"
        self.store.put(unit.key, {"unit.o": path}, label=unit.label)
        path.unlink()
        self.compiled.add(unit.key)
        self._step(unit.label, False, result.seconds)

    def _link(self, name: str, units: Sequence[Unit]) -> Path:
        label, key = f"library {name}", link_key(units, self.tools)
        with self.store.stage() as stage:
            for i, unit in enumerate(units):
                entry = self.store.get(unit.key)
                if entry is None:
                    raise KernelgenError(
                        f"the store lost {unit.label} during the build",
                        hint="repeat the command",
                    )
                (stage / f"{i:04}.o").symlink_to(entry.path("unit.o"))
            objects = tuple(f"{i:04}.o" for i in range(len(units)))
            argv = (self.tools.compiler, *objects, "-o", "library.so", *LINK_FLAGS)
            results: list[JobResult] = []
            run_jobs([Job(label, argv, stage)], 1, results.append)
            if results[0].returncode:
                raise self._failed(key, label, {}, results[0])
            data = (stage / "library.so").read_bytes()
        self._refuse_undefined(data, label)
        entry = self.store.put(key, {"library.so": data}, label=label)
        self._step(label, False, results[0].seconds)
        return entry.path("library.so")

    def _refuse_undefined(self, data: bytes, label: str) -> None:
        # tvm-ffi's own symbols come from the loaded libtvm_ffi; any other would fail at load.
        undefined = parse_library(data, source=label).undefined
        bad = [symbol for symbol in undefined if not symbol.startswith("TVMFFI")]
        if bad:
            shown = ", ".join(bad[:5])
            raise CompileFailed.of(what=label, lines=f"nothing defines {shown}")

    def _failed(
        self, key: str, what: str, files: Mapping[str, str], result: JobResult
    ) -> KernelgenError:
        if "No space left on device" in result.errors:
            raise disk_full(self.store.root)
        lines = [line for line in result.errors.splitlines() if "error" in line.lower()]
        shown = "\n  ".join((lines or result.errors.splitlines() or ["no message"])[:5])
        if result.returncode < 0:
            shown = f"the compiler was killed by signal {-result.returncode}\n  {shown}"
        command = shlex.join(result.job.argv)
        kept = self.store.keep_failed(
            key, {**files, "command.txt": command + "\n", "errors.txt": result.errors}
        )
        return CompileFailed.of(what=what, lines=shown, hint=f"source and command kept in {kept}")

    def _step(self, label: str, cached: bool, seconds: float, steps: int = 1) -> None:
        self.done += steps
        if self.progress:
            self.progress(BuildStep(self.done, self.total, label, cached, seconds))


def _link_blobs(stage: Path, units: Sequence[Unit]) -> None:
    """Puts what units take in by `.incbin` beside their sources."""
    for name, path in {b.name: b.path for unit in units for b in unit.source.blobs}.items():
        place = stage / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path.resolve())
