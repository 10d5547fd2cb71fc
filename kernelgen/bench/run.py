"""Owns a run of the benchmark: the model made ready, its cases measured, then the baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from kernelgen.bench.attention import measure_attention
from kernelgen.bench.case import Case, prompts
from kernelgen.bench.gpu_time import kernel_records
from kernelgen.bench.kernels import MeasuredLaunch, by_kernel, measured_launches
from kernelgen.bench.matrices import matrices, measure_products
from kernelgen.bench.opened import Opened
from kernelgen.bench.options import CUBLAS, SDPA, Options, Say
from kernelgen.bench.peers import ADAPTERS, measure_engine
from kernelgen.bench.play import measure, play
from kernelgen.bench.records import profile
from kernelgen.bench.report import CaseReport, Report, StepKernels
from kernelgen.bench.start import StartFigures, measure_start

PROFILED_TOKENS = 16

Launches = tuple[MeasuredLaunch, ...]


def run(options: Options, say: Say, keep: Callable[[Report], None] = lambda report: None) -> Report:
    """Everything that `options` ask for; `say` gets a line before each part, `keep` all that there
    is after each part: whatever ends the run early leaves that behind.

    The model is gone before baselines need memory. Raises `UsageError` for cases that the build
    cannot run, and the runtime's own errors: no GPU, the wrong one, too little memory.
    """
    opened = Opened(options)
    say(f"{opened.built.name} on {opened.place}: weights {options.weights}, getting ready")
    llm, ready = opened.ready(options.batch, options.length)
    say("read ceiling")
    setup = opened.setup(llm, ready)
    cases: list[CaseReport] = []
    seen: list[Launches] = []
    for case in options.cases:
        say(f"{case.words}: steps")
        report, launches = _case(llm, opened, options, case, setup.ceiling_gb_s)
        cases.append(report)
        seen.append(launches)
        keep(Report(setup, tuple(cases)))
    del llm
    opened.free()
    for found in _baselines(opened, options, say, cases, seen):
        cases = found
        keep(Report(setup, tuple(cases)))
    if not options.start:
        return Report(setup, tuple(cases))
    whole = Report(setup, tuple(cases), _start(opened, options, say))
    keep(whole)
    return whole


def _baselines(
    opened: Opened,
    options: Options,
    say: Say,
    cases: Sequence[CaseReport],
    seen: Sequence[Launches],
) -> Iterator[list[CaseReport]]:
    """The reports again and again, each time with one more baseline of one more case."""
    now = list(cases)
    for i, launches in enumerate(seen):
        now[i] = _with_products(opened, options, say, now[i], launches)
        yield now
    if opened.gpu and SDPA in options.baselines:
        say("torch attention")
        for i, launches in enumerate(seen):
            now[i] = _with_attention(opened, now[i], launches)
            yield now
    for name in (name for name in options.baselines if name in ADAPTERS):
        say(f"{name}: all cases")
        now = _with_engine(opened, options, name, now)
        yield now


def _case(
    llm: Any, opened: Opened, options: Options, case: Case, ceiling: float | None
) -> tuple[CaseReport, Launches]:
    """Steps, then their kernels where a GPU runs them; every launch of a step, if profiled."""
    step = measure(llm, case, options.rounds)
    floor = opened.built.floor_bytes(case.batch, case.context)
    report = CaseReport(
        case=case,
        plan_size=opened.built.decode_size(case.batch),
        command=options.repeat([case]),
        clocks=opened.clocks(),
        step=step,
        floor_bytes=floor,
        floor_us=round(floor / ceiling / 1e3, 1) if ceiling else None,
    )
    if not (options.kernels and opened.gpu):
        return report, ()
    tokens = min(PROFILED_TOKENS, case.tokens)
    rows, context = prompts(case, llm.manifest.vocab), case.prompt + tokens // 2
    kernel_records(lambda: play(llm, rows, 2))  # the profiler's own start takes a while
    found = profile(kernel_records(lambda: play(llm, rows, tokens)))
    if found is None:
        return replace(report, notes=("the profiler saw no two equal steps",)), ()
    launches, problem = measured_launches(found.decode, opened.built, case, context)
    kernels = StepKernels(
        launches=len(launches),
        per_layer=_per_layer(launches),
        context=context,
        span_us=found.decode.span_us,
        between_us=found.decode.between_us,
        kernels=by_kernel(launches),
        prompt=tuple(sorted(found.prompt, key=lambda kernel: -kernel.advance_us)),
    )
    return replace(report, kernels=kernels, notes=(problem,) if problem else ()), launches


def _per_layer(launches: Sequence[MeasuredLaunch]) -> int | None:
    layers = [launch.planned.layer for launch in launches if launch.planned]
    return max((layers.count(layer) for layer in set(layers) - {None}), default=None)


def _with_products(
    opened: Opened, options: Options, say: Say, report: CaseReport, launches: Launches
) -> CaseReport:
    """The report with cuBLAS's times of its matrices."""
    if CUBLAS not in options.baselines or not opened.gpu:
        return report
    plan = opened.built.decode_plan(report.case.batch)
    if plan is None:
        note = "which matrices share an input is in the plans of a build: no products measured"
        return replace(report, notes=(*report.notes, note))
    say(f"{report.case.words}: cuBLAS")
    found = matrices(opened.built, plan.view)
    products = measure_products(opened.built, found, launches, report.case.batch)
    opened.free()
    return replace(report, products=products)


def _with_attention(opened: Opened, report: CaseReport, launches: Launches) -> CaseReport:
    """The report with torch's times of its attention."""
    case = report.case
    attention, problems = measure_attention(opened.built, case, case.context, launches)
    opened.free()
    return replace(report, attention=attention, notes=(*report.notes, *problems))


def _with_engine(
    opened: Opened, options: Options, name: str, reports: Sequence[CaseReport]
) -> list[CaseReport]:
    """The reports with the figures of one other engine."""
    cases = [report.case for report in reports]
    place = "cuda" if opened.gpu else "cpu"
    answers = measure_engine(name, options.config, opened.built.dtype, place, cases, options.rounds)
    return [
        replace(report, engines=(*report.engines, answer))
        for report, answer in zip(reports, answers, strict=True)
    ]


def _start(opened: Opened, options: Options, say: Say) -> StartFigures:
    """The clocks of a start with the first case's prompt."""
    say("starts, in processes of their own")
    case, where = options.cases[0], ["--device", opened.place]
    threads = [] if options.threads is None or opened.gpu else ["--threads", str(options.threads)]
    return measure_start(
        options.build,
        [*where, *threads],
        options.weights,
        case,
        opened.built.vocab,
        opened.built.decode_sizes,
    )
