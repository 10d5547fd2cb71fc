"""Owns `kernelgen tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelgen.cli import console
from kernelgen.cli.options import (
    Activations,
    CacheType,
    Dtype,
    Json,
    KvCacheDtype,
    TablesFolder,
    Target,
)
from kernelgen.core.errors import UsageError

if TYPE_CHECKING:
    from kernelgen.cli.tune import Emission, Measuring
    from kernelgen.tune.emit import Wish
    from kernelgen.tune.rows import Brought
    from kernelgen.tune.sweep import Outcome


def tune(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="What to tune, as `build` takes it; not needed to measure, merge or report.",
            show_default=False,
        ),
    ] = None,
    target: Target = "sm_90",
    emit: Annotated[
        Path | None,
        typer.Option(metavar="BUNDLE", help="Compile all candidates into BUNDLE; needs no GPU."),
    ] = None,
    measure: Annotated[
        Path | None,
        typer.Option(metavar="BUNDLE", help="Measure a bundle on this GPU; needs no compiler."),
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(metavar="JOURNAL", help="Bring measured rows into the tables."),
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(metavar="JOURNAL", help="Print what sweeps have found; may be repeated."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(metavar="SIZE,…", help="decode:N, mixed:N, decode or mixed. [all sizes]"),
    ] = None,
    families: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Only these kernel families. [all]")
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only kernels and sizes without a row that counts.")
    ] = False,
    effort: Annotated[
        str, typer.Option(help="Tiles of a kernel: quick, normal, full, or kept: the one in use.")
    ] = "normal",
    whole_step: Annotated[
        bool,
        typer.Option(
            "--whole-step",
            help="Then try near tiles of the plan's kernels inside whole decode steps.",
        ),
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop after so long; repeat to go on. [no limit]")
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What has been measured. [beside the bundle]"),
    ] = None,
    provenance: Annotated[
        str, typer.Option(help="Name of the sweep in PROVENANCE.md. [device, date, model]")
    ] = "",
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Measure on the GPUs of a Ray cluster."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as one page.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Compilers at once. [all cores]")
    ] = None,
    quantization_config: Annotated[
        Path | None,
        typer.Option(
            "--quantization-config",
            help="JSON file: which matrices are quantised when they are loaded, and how.",
        ),
    ] = None,
    kv_cache_dtype: KvCacheDtype = CacheType.AUTO,
    dtype: Dtype = Activations.BFLOAT16,
    tables: TablesFolder = None,
    json: Json = False,
) -> None:
    """Find the fastest tile of every kernel of MODEL by measuring, and keep it in the tables."""
    from kernelgen.cli import tune as tuning
    from kernelgen.cli.tune_modes import mode_of
    from kernelgen.core.files import refuse_unwritable

    mode_of(context)
    how = tuning.Measuring(minutes, ray=ray)
    for path in (html, journal):
        if path is not None:
            refuse_unwritable(path)
    if merge:
        _tell_merged(tuning.merge_journals(merge, tables, provenance), json)
        return
    if report:
        _tell_report(report, html, json)
        return
    if measure is not None:
        book = journal or tuning.default_journal(measure)
        _measure(measure, book, how, json)
        _tell_report([book], html, json)
        return
    if model is None:
        hint = "or give --measure BUNDLE, --merge JOURNAL, --report JOURNAL"
        raise UsageError("MODEL is missing", hint=hint)
    from kernelgen.cli.model import resolve

    source = resolve(model)
    wish = tuning.wish_for(
        source, target, sizes=sizes, wanted=families, effort=effort, missing=missing,
        whole_step=whole_step, dtype=dtype.value, tables=tables, online=quantization_config,
        cache=kv_cache_dtype.value,
    )  # fmt: skip
    if whole_step and ray is not None:
        hint = "leave out --ray, or --emit here and --measure on one GPU"
        raise UsageError("a whole step stays on one GPU", where="--whole-step", hint=hint)
    if emit is not None:
        made = _emit(wish, emit, jobs, json)
        console.result_json(made) if json else console.result(made.bundle)
        return
    kind = "tune.whole" if whole_step else "tune"
    book = journal or Path(f"{source.name}.{kind}.journal.jsonl")
    refuse_unwritable(book)
    _tune(wish, book, how, jobs, json)
    _tell_merged(tuning.merge_journals([book], tables, provenance), json=False)
    _tell_report([book], html, json)


def _emit(wish: Wish, bundle: Path, jobs: int | None, quiet: bool) -> Emission:
    from kernelgen.cli import tune as tuning
    from kernelgen.cli.tune_display import display

    with display(f"compiling candidates of {wish.graph.name}", quiet=quiet) as shown:
        made = tuning.emit_bundle(wish, bundle, jobs=jobs, progress=shown.compiled)
    console.say(
        f"{made.candidates} candidates of {made.groups} kernels, {made.codes} codes,"
        f" {made.failed} illegal, {made.bytes / 1e6:.1f} MB in {made.seconds:.0f} s"
    )
    return made


def _measure(bundle: Path, journal: Path, how: Measuring, quiet: bool) -> None:
    from kernelgen.cli import tune as tuning
    from kernelgen.cli.tune_display import display

    with display(f"measuring {bundle.name}", quiet=quiet) as shown:
        done = tuning.measure_bundle(bundle, journal, how, shown.measured)
    _tell_outcome(done, journal)


def _tune(wish: Wish, journal: Path, how: Measuring, jobs: int | None, quiet: bool) -> None:
    """Compiles and measures at once; one after the other where all has to be there: on the nodes of
    a cluster, or in a whole step.
    """
    from kernelgen.cli import tune as tuning
    from kernelgen.cli.tune_display import display

    if how.ray is not None or wish.whole_step:
        bundle = journal.with_suffix(".zip")
        _emit(wish, bundle, jobs, quiet)
        _measure(bundle, journal, how, quiet)
        return
    with display(f"tuning {wish.graph.name} for {wish.device.target}", quiet=quiet) as shown:
        done = tuning.measure_ahead(
            wish, journal, how, jobs=jobs, progress=shown.compiled, tell=shown.measured
        )
    _tell_outcome(done, journal)


def _tell_outcome(done: Outcome, journal: Path) -> None:
    console.say(
        f"{done.measured} kernels measured in {done.seconds:.0f} s, {done.resumed} were there,"
        f" {done.left} left, {done.flagged} disturbed, {done.bad} candidates bad; {journal}"
    )
    if done.decided or done.undecided:
        console.say(
            f"{done.decided} tiles chosen inside whole steps, {done.undecided} kernels left"
        )


def _tell_merged(done: Brought, json: bool) -> None:
    console.say_some([*done.problems, *done.conflicts])
    if json:
        console.result_json(done)
    else:
        console.say(f"{done.added} rows added, {done.replaced} replaced, {done.kept} kept as newer")
    console.say_some([f"wrote {file}" for file in done.files])
    console.say_some(done.notes)


def _tell_report(journals: Sequence[Path], html: Path | None, json: bool) -> None:
    from kernelgen.core.files import write_atomic
    from kernelgen.report.sweep_data import read_sweep
    from kernelgen.report.sweep_html import sweep_html
    from kernelgen.report.sweep_text import sweep_parts
    from kernelgen.tune.journal import read_journal

    lines: list[Mapping[str, Any]] = []
    for journal in journals:
        found, problems = read_journal(journal)
        console.say_some(problems)
        lines += found
    try:
        view = read_sweep(lines)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"a line lacks {error}, or holds something else there"
        raise UsageError(text, where=", ".join(map(str, journals))) from error
    if html is not None:
        write_atomic(html, sweep_html(view))
        console.say(f"wrote {html}")
    if json:
        console.result_json(view)
    else:
        console.render(*sweep_parts(view))
