"""Owns how a report is told: its heading, and which grids of text it becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernelgen.bench.grid import Grid, markdown_lines
from kernelgen.bench.report import CaseReport, Report, Setup, StepKernels, share
from kernelgen.bench.start import StartClocks, StartFigures
from kernelgen.report.figures import bytes_text, percent_text

MOST_PROMPT_KERNELS = 12


def heading(setup: Setup) -> list[str]:
    """What holds for all tables: model, device, versions, ceiling, and the command."""
    machine = setup.machine
    driver = f", driver {machine.driver}" if machine.driver else ""
    cores = f", {setup.threads} threads" if setup.threads else ""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    lines = [
        f"{setup.model} ({setup.dtype}, {setup.isa}) on {machine.device}{driver}{cores}",
        f"{machine.date}, {versions}; load before the run {machine.load_before:.1f}",
        f"weights {setup.weights}, ready for requests in {setup.ready_s:.2f} s, imports excluded",
    ]
    if setup.ceiling_gb_s:
        of = share(setup.ceiling_gb_s, machine.spec_gb_s)
        spec = f", {percent_text(of)} of the data sheet's {machine.spec_gb_s:.0f}" if of else ""
        lines.append(f"read ceiling of this run {setup.ceiling_gb_s:.1f} GB/s{spec}")
    return [*lines, setup.command]


def grids(report: Report) -> Iterator[Grid]:
    """Every table of a report."""
    yield step_grid(report)
    for case in report.cases:
        if case.kernels is not None:
            yield kernel_grid(case, case.kernels, report.setup)
            if case.kernels.prompt:
                yield prompt_grid(case, case.kernels)
        if case.products is not None:
            yield product_grid(case)
        if case.attention:
            yield attention_grid(case)
    if any(case.engines for case in report.cases):
        yield engine_grid(report)
    if report.start is not None:
        yield start_grid(report.start)


def step_grid(report: Report) -> Grid:
    """A row a case."""
    columns = (
        *("batch", "in", "out", "plan", "step µs (low–high)", "p90", "tokens/s", "floor µs"),
        *("floor/step", "GB/s", "first tokens, ms", "kernels", "a layer", "clocks"),
    )
    rows = [_step_row(case) for case in report.cases]
    title = "Whole decode steps, sampling and runtime included; floor: bytes at the read ceiling"
    return Grid(title, columns, tuple(rows), 0)


def _step_row(case: CaseReport) -> tuple[str, ...]:
    step, kernels = case.step, case.kernels
    reached = share(case.floor_us, step.step_us.median)
    return (
        str(case.case.batch),
        str(case.case.prompt),
        str(case.case.tokens),
        str(case.plan_size),
        step.step_us.text,
        f"{step.p90_us:.1f}",
        f"{step.tokens_per_second:.0f}",
        _number(case.floor_us),
        _percent(reached),
        f"{case.floor_bytes / step.step_us.median / 1e3:.1f}",
        step.prefill_ms.text,
        str(kernels.launches) if kernels else "–",
        str(kernels.per_layer) if kernels and kernels.per_layer else "–",
        case.clocks.text if case.clocks.sm_mhz else "–",
    )


def kernel_grid(case: CaseReport, kernels: StepKernels, setup: Setup) -> Grid:
    """A row a kernel, the longest sum first."""
    whole = sum(kernel.total_us for kernel in kernels.kernels)
    rows = [
        (
            kernel.name,
            str(kernel.launches),
            f"{kernel.duration_us:.2f}",
            f"{kernel.advance_us:.2f}",
            f"{kernel.total_us:.1f}",
            _percent(share(kernel.total_us, whole)),
            _number(kernel.predicted_us, 2),
            bytes_text(kernel.bytes) if kernel.bytes is not None else "–",
            _number(kernel.gb_s, 0),
            _percent(share(kernel.gb_s, setup.machine.spec_gb_s)),
            _percent(share(kernel.gb_s, setup.ceiling_gb_s)),
        )
        for kernel in kernels.kernels
    ]
    title = (
        f"Kernels of a step, {case.case.words}, {kernels.context} entries of context, profiled: "
        f"span {kernels.span_us:.1f} µs, {kernels.between_us:.1f} µs between steps; "
        "advance: end after the end of all before"
    )
    columns = (
        *("kernel", "n", "duration µs", "advance µs", "sum µs", "of step", "predicted µs"),
        *("bytes", "GB/s", "of spec", "of ceiling"),
    )
    return Grid(title, columns, tuple(rows))


def prompt_grid(case: CaseReport, kernels: StepKernels) -> Grid:
    """The kernels that take most of the prompts."""
    rows = [
        (k.name, str(k.count), f"{k.duration_us / k.count:.2f}", f"{k.advance_us:.1f}")
        for k in kernels.prompt[:MOST_PROMPT_KERNELS]
    ]
    rest = len(kernels.prompt) - len(rows)
    title = f"Kernels of the prompts, {case.case.words}" + (f"; {rest} more" if rest > 0 else "")
    return Grid(title, ("kernel", "n", "duration µs", "sum of advances µs"), tuple(rows))


def product_grid(case: CaseReport) -> Grid:
    """A row a product, then all of them."""
    assert case.products is not None
    rows = [
        (
            product.name,
            f"{product.outputs} × {product.inputs}",
            str(product.count),
            product.cublas_us.text,
            _number(product.ours_us, 2),
        )
        for product in case.products.each
    ]
    chain, own = case.products.chain_us.text, _number(case.products.ours_us)
    rows.append(("all in one captured chain", "", "", chain, own))
    title = f"Products, {case.case.words}: cuBLAS, and our kernels with all else they do (advance)"
    return Grid(title, ("product", "outputs × inputs", "n", "cuBLAS µs", "ours µs"), tuple(rows))


def attention_grid(case: CaseReport) -> Grid:
    """A row a shape."""
    rows = [
        (
            row.phase,
            f"{row.heads}/{row.kv_heads} × {row.head_dim}",
            str(row.batch),
            str(row.context),
            str(row.count),
            row.torch_us.text,
            row.backend,
            _number(row.ours_us, 2),
        )
        for row in case.attention
    ]
    title = f"Attention of a layer, {case.case.words}: torch on contiguous keys, best backend"
    columns = ("phase", "heads", "batch", "context", "n", "torch µs", "backend", "ours µs")
    return Grid(title, columns, tuple(rows))


def engine_grid(report: Report) -> Grid:
    """A row a case and engine, ours first."""
    rows: list[tuple[str, ...]] = []
    for case in report.cases:
        ours = (case.step.step_us.text, case.step.prefill_ms.text, "")
        rows.append((case.case.words, "kernelgen", *ours))
        for engine in case.engines:
            name = f"{engine.engine} {engine.version}".strip()
            step = engine.step_us.text if engine.step_us else "–"
            first = engine.prefill_ms.text if engine.prefill_ms else "–"
            rows.append((case.case.words, name, step, first, engine.problem))
    columns = ("case", "engine", "step µs", "first tokens, ms", "problem")
    return Grid("Other engines, made-up weights, same run", columns, tuple(rows), 2)


def start_grid(start: StartFigures) -> Grid:
    """The clocks of a start, smallest of the rounds."""
    kinds = (start.one, start.all)

    def row(what: str, text: Callable[[StartClocks], str]) -> tuple[str, ...]:
        return (what, *map(text, kinds))

    rows = [
        row("process start → first token, s", lambda c: f"{c.process_to_first_token_s.low:.2f}"),
        row("imports done → first token, s", lambda c: f"{c.imports_to_first_token_s.low:.2f}"),
        row("loading the weights, s", lambda c: f"{c.load_s.low:.2f}"),
        row("GB/s", lambda c: f"{start.load_bytes / c.load_s.low / 1e9:.1f}"),
    ]
    if start.all.graphs:
        rows.append(row("capturing graphs, s", lambda c: f"{c.graphs_s.low:.2f}"))
        rows.append(row("graphs", lambda c: str(c.graphs)))
    ran = ", ".join(start.processes) or "no program"
    title = (
        f"Start, {start.prompt} tokens in, files in the page cache; host memory at most "
        f"{bytes_text(start.peak_host_bytes)}; ran {ran}, Triton "
        f"{'was' if start.triton_imported else 'not'} imported"
    )
    columns = ("", "one request", f"{start.all.requests} requests at once")
    return Grid(title, columns, tuple(rows))


def markdown(report: Report) -> str:
    """The whole report as Markdown."""
    *lines, command = heading(report.setup)
    parts = ["; ".join(lines) + f". `{command}`"]
    parts += ["\n".join([f"{grid.title}:", "", *markdown_lines(grid)]) for grid in grids(report)]
    parts += [f"- {note}" for note in notes(report)]
    return "\n\n".join(parts) + "\n"


def notes(report: Report) -> list[str]:
    """What was not measured, and why; each once."""
    found = [f"{case.case.words}: {note}" for case in report.cases for note in case.notes]
    return list(dict.fromkeys(found))


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else percent_text(value)
