"""Owns the Triton toolchain: kernels to machine code of each SM in child processes, no GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelgen.codegen.cuda.image import KernelImage
from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.compile.cpp import BuildStep, CompileFailed
from kernelgen.compile.jobs import default_jobs
from kernelgen.compile.store import Entry, Store
from kernelgen.compile.triton_limits import IllegalKernel, KernelFault, problems
from kernelgen.compile.triton_pieces import Piece, pieces_of
from kernelgen.compile.triton_toolchain import find_triton, worker_environment
from kernelgen.compile.triton_worker import MODULES, Answer, Order
from kernelgen.compile.workers import Task, TaskResult, Workshop, run_tasks
from kernelgen.core.decode import from_json
from kernelgen.core.errors import Interrupted, KernelgenError
from kernelgen.core.files import disk_full, write_tree
from kernelgen.core.jsonio import dumps, dumps_readable, load_file, loads

__all__ = ("CompiledKernel", "IllegalKernel", "KernelFault", "TritonUnit", "compile_triton")

TIME_LIMIT_S = 300.0  # a kernel takes seconds: beyond this Triton or ptxas hangs
_CUBIN, _PTX, _FACTS = "kernel.cubin", "kernel.ptx", "kernel.json"


@dataclass(frozen=True)
class CompiledKernel:
    """A legal kernel in the store; its files stay there while the store's session lasts."""

    name: str
    sm: int
    image: KernelImage
    cubin: Path
    ptx: Path
    cached: bool


def compile_triton(
    units: Sequence[TritonUnit],
    *,
    sms: Sequence[int],
    store: Store,
    modules: Mapping[str, str] | None = None,
    jobs: int | None = None,
    time_limit_s: float = TIME_LIMIT_S,
    progress: Callable[[BuildStep], None] | None = None,
) -> tuple[CompiledKernel, ...]:
    """Each unit for each SM (`sms`: 90 for 9.0) in that order; call it inside `store.session()`.

    `modules` are Python files (relative path → text) that units import. No GPU, driver or torch
    takes part. Equal inputs give equal PTX. Raises `UnsupportedError` (no Triton), `CompileFailed`
    at the first kernel that does not compile, `IllegalKernel` over all that spill or exceed a
    limit (once everything is compiled), `DiskFull`, and `Interrupted` on KeyboardInterrupt:
    kernels finished by then stay in the store.
    """
    return _TritonBuild(units, sms, dict(modules or {}), store, progress).run(
        jobs or default_jobs(), time_limit_s
    )


class _TritonBuild:
    """State of one `compile_triton`."""

    def __init__(
        self,
        units: Sequence[TritonUnit],
        sms: Sequence[int],
        modules: dict[str, str],
        store: Store,
        progress: Callable[[BuildStep], None] | None,
    ) -> None:
        self.modules = modules
        self.store = store
        self.progress = progress
        self.pieces = pieces_of(units, sms, modules, find_triton())
        self.done = 0
        self.entries: dict[str, Entry] = {}
        self.fresh: set[str] = set()

    def run(self, workers: int, time_limit_s: float) -> tuple[CompiledKernel, ...]:
        todo: dict[str, Piece] = {}
        for piece in self.pieces:
            if piece.key in self.entries or piece.key in todo:
                self._step(piece.label, True, 0.0)
            elif (entry := self.store.get(piece.key)) is not None:
                self.entries[piece.key] = entry
                self._step(piece.label, True, 0.0)
            else:
                todo[piece.key] = piece
        try:
            self._compile(todo, workers, time_limit_s)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped after {self.done} of {len(self.pieces)} kernels",
                hint="repeat the command: finished kernels are kept",
            ) from None
        made = tuple(self._kernel(piece) for piece in self.pieces)
        self._refuse_illegal(made)
        return made

    def _compile(self, todo: Mapping[str, Piece], workers: int, time_limit_s: float) -> None:
        if not todo:
            return
        with self.store.stage() as stage:
            write_tree(stage / MODULES, self.modules)
            shop = Workshop(_worker_command, stage, worker_environment(stage), time_limit_s)
            pieces = {
                # Long sources first, as far as one can tell: the last core then waits least.
                Task(piece.label, str(piece.sm), dumps(Order(key, piece.unit))): piece
                for key, piece in sorted(todo.items(), key=lambda item: -len(item[1].unit.text))
            }
            run_tasks(
                list(pieces),
                workers,
                shop,
                lambda result: self._finished(pieces[result.task], result, stage),
            )

    def _finished(self, piece: Piece, result: TaskResult, stage: Path) -> None:
        if not result.reply:
            said = [line for line in result.output.splitlines() if "error" in line.lower()]
            why = "\n".join([f"the compiler {result.ended}", *said[:4]])
            raise self._failed(piece, why, result.output)
        answer = from_json(
            Answer, loads(result.reply, source=piece.label), source=f"the worker of {piece.label}"
        )
        if answer.image is None:
            raise self._failed(piece, answer.error, f"{answer.detail}\n{result.output}")
        cubin, ptx = stage / f"{piece.key}.cubin", stage / f"{piece.key}.ptx"
        self.entries[piece.key] = self.store.put(
            piece.key,
            {_CUBIN: cubin, _PTX: ptx, _FACTS: dumps_readable(answer.image).encode()},
            label=piece.label,
        )
        cubin.unlink()
        ptx.unlink()
        self.fresh.add(piece.key)
        self._step(piece.label, False, result.seconds)

    def _kernel(self, piece: Piece) -> CompiledKernel:
        entry = self.entries[piece.key]
        facts = entry.path(_FACTS)
        image = from_json(KernelImage, load_file(facts), source=str(facts))
        return CompiledKernel(
            piece.unit.name,
            piece.sm,
            image,
            entry.path(_CUBIN),
            entry.path(_PTX),
            piece.key not in self.fresh,
        )

    def _refuse_illegal(self, made: Sequence[CompiledKernel]) -> None:
        faults = tuple(
            KernelFault(piece.unit.name, piece.sm, piece.unit.tile, problem)
            for piece, kernel in zip(self.pieces, made, strict=True)
            for problem in problems(kernel.image, piece.sm in piece.unit.spills_on)
        )
        if faults:
            raise IllegalKernel.found(faults)

    def _failed(self, piece: Piece, why: str, output: str) -> KernelgenError:
        if "No space left on device" in output:
            return disk_full(self.store.root)
        kept = self.store.keep_failed(
            piece.key,
            {
                **self.modules,
                f"{piece.unit.name}.py": piece.unit.text,
                "unit.json": dumps_readable(piece.unit),
                "errors.txt": output,
            },
        )
        lines = "\n  ".join(why.splitlines())
        return CompileFailed.of(what=piece.label, lines=lines, hint=f"source kept in {kept}")

    def _step(self, label: str, cached: bool, seconds: float) -> None:
        self.done += 1
        if self.progress:
            self.progress(BuildStep(self.done, len(self.pieces), label, cached, seconds))


def _worker_command(group: str, reply_to: int) -> list[str]:
    # -P: neither the working directory nor this folder, which has a triton.py, is searched first.
    return [sys.executable, "-P", "-m", "kernelgen.compile.triton_worker", group, str(reply_to)]
