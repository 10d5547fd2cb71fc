"""Owns compiling candidates: many units, of which some spill or fail, which is no error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelgen.codegen.cuda.unit import TritonUnit
from kernelgen.compile.cpp import BuildStep, CompileFailed
from kernelgen.compile.store import Store
from kernelgen.compile.triton import CompiledKernel, IllegalKernel, compile_triton

BATCH = 48
"""units that are compiled between two looks at what failed"""


@dataclass(frozen=True)
class Compiled:
    """What became of the units of a sweep."""

    kernels: Mapping[str, CompiledKernel]
    failed: Mapping[str, str]
    """unit name → what the compiler said, or the limit that it exceeds"""


@dataclass
class _Batches:
    sm: int
    store: Store
    jobs: int | None
    progress: Callable[[BuildStep], None]
    total: int
    kernels: dict[str, CompiledKernel] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def take(self, units: Sequence[TritonUnit]) -> None:
        """Compiles a batch; halves it where one unit stops the others."""
        if not units:
            return
        try:
            made = compile_triton(
                units, sms=[self.sm], store=self.store, jobs=self.jobs, progress=self._step
            )
        except IllegalKernel as error:
            for fault in error.faults:
                self.failed.setdefault(fault.kernel, fault.problem)
            self.take([u for u in units if u.name not in self.failed])
        except CompileFailed as error:
            if len(units) == 1:
                self.failed[units[0].name] = " ".join(str(error).split())[:400]
                return
            middle = len(units) // 2
            self.take(units[:middle])
            self.take(units[middle:])
        else:
            self.kernels |= {kernel.name: kernel for kernel in made}

    def _step(self, step: BuildStep) -> None:
        """A step of the whole; what is compiled a second time does not count twice."""
        done = min(self.total, len(self.kernels) + len(self.failed) + step.done)
        self.progress(BuildStep(done, self.total, step.label, step.cached, step.seconds))


def compile_candidates(
    units: Sequence[TritonUnit],
    *,
    sm: int,
    store: Store,
    jobs: int | None = None,
    progress: Callable[[BuildStep], None] = lambda step: None,
) -> Compiled:
    """Every unit once; call it inside `store.session()`. Errors as `compile_triton`, but for units
    that do not compile, spill or exceed a limit: they are told in `failed`.
    """
    batches = _Batches(sm, store, jobs, progress, len(units))
    for batch in _batched(units):
        batches.take(batch)
    return Compiled(batches.kernels, batches.failed)


def _batched(units: Sequence[TritonUnit]) -> Iterator[Sequence[TritonUnit]]:
    for start in range(0, len(units), BATCH):
        yield units[start : start + BATCH]
