"""Owns tuning from the command line: emit a bundle, measure it, merge rows, or all at once."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kernelgen.cli.gpus import refuse_missing_gpu
from kernelgen.cli.model import ModelSource
from kernelgen.cli.pipeline import DECODE_SIZES, MIXED_SIZES, lowered
from kernelgen.cli.tuned import open_tables
from kernelgen.compile.cpp import BuildStep
from kernelgen.compile.jobs import default_jobs
from kernelgen.compile.store import Store
from kernelgen.core.errors import CheckFailed, UnsupportedError, UsageError, quote
from kernelgen.core.files import refuse_unwritable
from kernelgen.hw import parse_target
from kernelgen.tables import Bucket, Row
from kernelgen.tables.checking import PROVENANCE, described
from kernelgen.tables.fit_file import fit_path, read_fit, tables_digest
from kernelgen.tune.ahead import Ahead
from kernelgen.tune.bundle_file import CONTENT, BundleFile, refuse_other_content, write_bundle
from kernelgen.tune.crew import Crew
from kernelgen.tune.emit import Emitter, Wish
from kernelgen.tune.journal import Journal, open_journal, read_journal
from kernelgen.tune.rows import Brought, bring, rows_in
from kernelgen.tune.selection import EFFORTS
from kernelgen.tune.spaces import families
from kernelgen.tune.sweep import Outcome, Part, Progress, Settings, Sweep


@dataclass(frozen=True)
class Emission:
    """What was emitted."""

    bundle: str
    bytes: int
    groups: int
    candidates: int
    codes: int
    failed: int
    """units that did not compile, spill or exceed a limit"""
    seconds: float


@dataclass(frozen=True)
class Measuring:
    """How bundles are measured. `kind` as `measurer_of` takes it; `ray`: the address of a cluster
    whose GPUs share the groups."""

    minutes: float | None = None
    kind: str = "cuda"
    time_limit_s: float = 20.0
    ray: str | None = None


def buckets(text: str | None) -> tuple[Bucket, ...]:
    """`decode:1,mixed:512`, `decode` or `mixed` for all sizes of a phase, None for all sizes.

    `UsageError` for sizes that no build has a plan for: nothing would ever look their rows up.
    """
    whole = {"decode": DECODE_SIZES, "mixed": MIXED_SIZES}
    every = [Bucket(phase, size) for phase, sizes in whole.items() for size in sizes]
    found: list[Bucket] = []
    for part in ("decode,mixed" if text is None else text).split(","):
        word = part.strip()
        named = [b for b in every if b.phase == word] or [b for b in every if str(b) == word]
        if not named:
            sizes = "; ".join(f"{p}:{', '.join(map(str, n))}" for p, n in whole.items())
            raise UsageError(
                f"{quote(word)} is no size that builds have a plan for",
                where="--sizes",
                allowed=f"decode, mixed, {sizes}",
            )
        found += named
    return tuple(dict.fromkeys(found))


def wish_for(
    source: ModelSource,
    target: str,
    *,
    sizes: str | None = None,
    wanted: str | None = None,
    effort: str = "normal",
    missing: bool = False,
    whole_step: bool = False,
    dtype: str = "bfloat16",
    tables: Path | None = None,
    online: Path | None = None,
    cache: str = "auto",
) -> Wish:
    """What is to be tuned; `UsageError` and `UnsupportedError` name what cannot be.

    `online`: a file that says which matrices are quantised when they are loaded. `cache`: what keys
    and values are stored as, as in `pipeline.lowered`.
    """
    device = parse_target(target)
    if device.is_cpu:
        raise UnsupportedError("the CPU target has no tiles to tune", where="--target")
    if effort not in EFFORTS:
        raise UsageError(f"effort {quote(effort)}", allowed=", ".join(EFFORTS))
    wanted_buckets = buckets("decode" if whole_step and sizes is None else sizes)
    if whole_step:
        _refuse_whole(wanted_buckets, missing, effort)
    model = lowered(source, dtype, online, cache)
    return Wish(
        graph=model.graph,
        vocabulary=model.spec.vocab,
        max_positions=model.spec.max_positions,
        device=device,
        tables=open_tables(tables),
        buckets=wanted_buckets,
        largest_mixed=max(MIXED_SIZES),
        effort=effort,
        families=_families(wanted),
        missing=missing,
        whole_step=whole_step,
    )


def _refuse_whole(wanted: Sequence[Bucket], missing: bool, effort: str) -> None:
    """`UsageError` for what has no meaning inside a whole step."""
    mixed = [str(b) for b in wanted if b.phase != "decode"]
    if mixed:
        told = f"{', '.join(mixed)}: only decode steps are tried whole"
        raise UsageError(told, where="--sizes", allowed="decode, decode:N")
    if missing or effort == "kept":
        option = "--missing" if missing else "--effort kept"
        raise UsageError(
            f"{option} leaves nothing to choose from",
            where="--whole-step",
            hint="leave it out: the tile in use is always among those that are tried",
        )


def _families(text: str | None) -> frozenset[str]:
    wanted = frozenset() if text is None else frozenset(p.strip() for p in text.split(","))
    for name in sorted(wanted - set(families())):
        raise UsageError(f"family {quote(name)}", where="--families", allowed=", ".join(families()))
    return wanted


def planned(wish: Wish) -> Emitter:
    """Every kernel of a wish that is worth measuring; `UsageError` where there is none."""
    emitter = Emitter.of(wish)
    if not emitter.planned:
        sizes = ", ".join(map(str, wish.buckets))
        named = ", ".join(sorted(wish.families)) or "any family"
        named += " without a row" if wish.missing else ""
        raise UsageError(
            f"{wish.graph.name} has no kernel of {named} at {sizes}",
            hint="choose other --sizes or --families",
        )
    return emitter


def emit_bundle(
    wish: Wish,
    path: Path,
    *,
    jobs: int | None = None,
    progress: Callable[[BuildStep], None] = lambda step: None,
) -> Emission:
    """Compiles all candidates of a model into one bundle; needs Triton and no GPU."""
    began = time.monotonic()
    refuse_other_content(path)
    refuse_unwritable(path / CONTENT if path.is_dir() else path)
    emitter = planned(wish)
    made = emitter.emitted(emitter.planned, Store(), jobs=jobs, progress=progress)
    groups = made.bundle.groups
    if not groups:
        why = next(iter(made.bundle.failed.values()), "no tile is legal")
        raise CheckFailed(f"no candidate of {wish.graph.name} can be measured: {why}")
    size = write_bundle(path, made.bundle, made.codes)
    return Emission(
        bundle=str(path),
        bytes=size,
        groups=len(groups),
        candidates=sum(len(g.candidates) for g in groups),
        codes=len(made.bundle.codes),
        failed=len(made.bundle.failed),
        seconds=round(time.monotonic() - began, 1),
    )


def measure_bundle(
    path: Path,
    journal: Path,
    how: Measuring = Measuring(),
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Measures what the journal does not hold yet; needs the GPU and no compiler."""
    file = BundleFile(path)
    if not file.bundle.groups:
        raise UsageError("holds no kernel to measure", where=str(path), hint="emit again")
    if file.bundle.steps and how.ray is not None:
        raise UsageError(
            "holds whole steps, and a step stays on one GPU",
            where=str(path),
            hint="measure it without --ray",
        )
    _refuse_no_gpu(file.bundle.device.target, how)
    part = Part(path, file.bundle)
    with _journal(journal, file.bundle.wish, file.bundle.generator) as book:
        if how.ray is not None:
            from kernelgen.tune.over_ray import measure_over_ray

            return measure_over_ray(how.ray, part, book, how.kind, how.time_limit_s,
                                    Settings(how.minutes), tell)  # fmt: skip
        with _sweep(book, how, tell) as sweep:
            sweep.total = len(file.bundle.groups)
            return sweep.run([part])


def measure_ahead(
    wish: Wish,
    journal: Path,
    how: Measuring = Measuring(),
    *,
    jobs: int | None = None,
    progress: Callable[[BuildStep], None] = lambda step: None,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Compiles and measures at once on a machine that has both Triton and the GPU."""
    from kernelgen import __version__

    _refuse_no_gpu(wish.device.target, how)
    emitter = planned(wish)

    with (
        _journal(journal, emitter.digest, f"kernelgen {__version__}") as book,
        tempfile.TemporaryDirectory(prefix="kernelgen-tune-") as folder,
        _sweep(book, how, tell) as sweep,
    ):
        done = emitter.done(book)
        # One core is left to the process that measures.
        spare = jobs or max(1, default_jobs() - 1)
        with Ahead(emitter, Store(), Path(folder), spare, done, progress) as ahead:
            sweep.total = len(emitter.planned)
            return sweep.run(ahead, resumed=len(done))


def _refuse_no_gpu(target: str, how: Measuring) -> None:
    """Said before anything is compiled or written; a cluster's nodes have their own GPUs."""
    if how.kind == "cuda" and how.ray is None:
        refuse_missing_gpu(target, "`kernelgen tune MODEL --emit BUNDLE` needs none")


@contextmanager
def _journal(path: Path, wish: str, generator: str) -> Iterator[Journal]:
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with open_journal(path, wish, date=began, generator=generator) as book:
        yield book


@contextmanager
def _sweep(book: Journal, how: Measuring, tell: Callable[[Progress], None]) -> Iterator[Sweep]:
    with tempfile.TemporaryDirectory(prefix="kernelgen-tune-") as folder:
        crew = Crew(how.kind, Path(folder), how.time_limit_s)
        try:
            yield Sweep(crew, book, Settings(how.minutes), tell)
        finally:
            crew.kill()


def merge_journals(
    paths: Sequence[Path], tables: Path | None = None, provenance: str = ""
) -> Brought:
    """Brings the rows of finished groups into the tables; disturbed and wrong ones stay out."""
    rows: list[Row] = []
    problems: list[str] = []
    for path in paths:
        lines, broken = read_journal(path)
        found, wrong = rows_in(lines, provenance)
        rows += found
        problems += [*broken, *(f"{path}: {problem}" for problem in wrong)]
    folder = open_tables(tables).folder
    done = bring(rows, folder)
    return replace(done, problems=tuple(problems), notes=tuple(_after(folder, rows, done)))


def _after(folder: Path, rows: Sequence[Row], done: Brought) -> Iterator[str]:
    """What is left to do by hand once rows have changed."""
    if not done.files:
        return
    for name in sorted({row.provenance for row in rows} - described(folder)):
        yield f"{folder / PROVENANCE} has no section ## {name} yet: say there how it was measured"
    for sm, device in sorted({(row.sm, row.device) for row in rows}):
        fit, _ = read_fit(fit_path(folder, sm, device))
        if fit is None or fit.tables != tables_digest(folder, sm, device):
            yield (
                f"the cost model of {sm}:{device} does not know the new rows:"
                f" kernelgen tables fit --target {sm}:{device} --tables {shlex.quote(str(folder))}"
            )


def default_journal(bundle: Path) -> Path:
    """Beside the bundle, under its name."""
    return bundle.with_name(f"{bundle.stem}.journal.jsonl")
