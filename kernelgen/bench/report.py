"""Owns the record of a run: everything that was measured, and the flat rows it becomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from kernelgen.bench.attention import AttentionFigures
from kernelgen.bench.case import Case
from kernelgen.bench.kernels import KernelFigures
from kernelgen.bench.machine import Clocks, Machine
from kernelgen.bench.matrices import Products
from kernelgen.bench.play import StepFigures
from kernelgen.bench.records import PromptKernel
from kernelgen.bench.series import Series
from kernelgen.bench.start import StartFigures

SCHEMA = 1


@dataclass(frozen=True)
class Setup:
    """What holds for the whole run. `command` repeats all of it; `ready_s` from an artifact on
    disk to a model that takes requests, imports excluded; `ceiling_gb_s` the best that reading
    took in the same run.
    """

    build: str
    model: str
    target: str
    isa: str
    dtype: str
    weights: str
    threads: int | None
    machine: Machine
    ready_s: float
    ceiling_gb_s: float | None
    command: str


@dataclass(frozen=True)
class StepKernels:
    """The kernels of a decode step under the profiler.

    `context`: entries of each request in the profiled steps. `per_layer`: launches of a layer, of
    the one with the most; None where no plan tells layers.
    """

    launches: int
    per_layer: int | None
    context: int
    span_us: float
    between_us: float
    kernels: tuple[KernelFigures, ...]
    prompt: tuple[PromptKernel, ...]


@dataclass(frozen=True)
class EngineFigures:
    """Another engine on the same case; `problem` says why there are no figures."""

    engine: str
    version: str = ""
    step_us: Series | None = None
    prefill_ms: Series | None = None
    problem: str = ""


@dataclass(frozen=True)
class CaseReport:
    """All of one case. `command` repeats it alone; `floor_us` is its bytes at the ceiling."""

    case: Case
    plan_size: int
    command: str
    clocks: Clocks
    step: StepFigures
    floor_bytes: int
    floor_us: float | None
    kernels: StepKernels | None = None
    products: Products | None = None
    attention: tuple[AttentionFigures, ...] = ()
    engines: tuple[EngineFigures, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """One run of `kernelgen bench`."""

    setup: Setup
    cases: tuple[CaseReport, ...]
    start: StartFigures | None = None

    def to_json(self) -> dict[str, Any]:
        """Schema 1: `setup`, and `rows` of which each stands alone."""
        return {"schema": SCHEMA, "setup": _plain(self.setup), "rows": list(self.rows())}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every figure with its shape, device, driver, clocks, date and command."""
        setup = self.setup
        stamp = {
            **{k: getattr(setup, k) for k in ("build", "model", "target", "isa", "dtype")},
            **{k: getattr(setup, k) for k in ("weights", "threads")},
            **{k: getattr(setup.machine, k) for k in ("device", "driver", "date", "versions")},
        }
        for case in self.cases:
            shape = asdict(case.case) | {"plan_size": case.plan_size}
            own = {"clocks": asdict(case.clocks), "command": case.command}
            for kind, values in _case_rows(case, setup):
                yield {"kind": kind, **shape, **values, **stamp, **own}
        yield {"kind": "ready", "ready_s": setup.ready_s, **stamp, "command": setup.command}
        if self.start is not None:
            yield {"kind": "start", **_plain(self.start), **stamp, "command": setup.command}


def share(value: float | None, whole: float | None) -> float | None:
    """`value / whole` in four digits; None where either is missing."""
    return round(value / whole, 4) if value is not None and whole else None


def _case_rows(case: CaseReport, setup: Setup) -> Iterator[tuple[str, dict[str, Any]]]:
    spec, ceiling = setup.machine.spec_gb_s, setup.ceiling_gb_s
    step = case.step.step_us.median
    yield (
        "step",
        {
            **_plain(case.step),
            "floor_bytes": case.floor_bytes,
            "floor_us": case.floor_us,
            "share_of_floor": share(case.floor_us, step),
            "gb_s": round(case.floor_bytes / step / 1e3, 1),
            "ceiling_gb_s": ceiling,
            "spec_gb_s": spec,
        },
    )
    if case.kernels is not None:
        own = _plain(case.kernels)
        kernels, prompt = own.pop("kernels"), own.pop("prompt")
        yield "launches", own
        for row in kernels:
            shares = {
                "share_of_spec": share(row["gb_s"], spec),
                "share_of_ceiling": share(row["gb_s"], ceiling),
            }
            yield "kernel", {**row, **shares, "context": case.kernels.context}
        for row in prompt:
            yield "prompt_kernel", row
    if case.products is not None:
        own = _plain(case.products)
        yield from (("product", row) for row in own.pop("each"))
        yield "products", own
    yield from (("attention", {**_plain(row), "baseline": "torch"}) for row in case.attention)
    yield from (("engine", _plain(row)) for row in case.engines)


def _plain(value: Any) -> Any:
    """JSON data; a series as its median with all values beside it."""
    if isinstance(value, Series):
        return {"median": value.median, "values": list(value.values)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value
