"""Owns tuning from the command line: emit a bundle, measure it, merge rows, or all at once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kernelgen.cli.model import ModelSource
from kernelgen.cli.pipeline import DECODE_SIZES, MIXED_SIZES, lowered
from kernelgen.compile.cpp import BuildStep
from kernelgen.compile.jobs import default_jobs
from kernelgen.compile.store import Store
from kernelgen.core.errors import UnsupportedError, UsageError, quote
from kernelgen.core.resources import tables_dir
from kernelgen.hw import parse_target
from kernelgen.tables import Bucket, Row, Tables
from kernelgen.tune.ahead import Ahead
from kernelgen.tune.bundle_file import BundleFile, refuse_other_content, write_bundle
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
    """`decode:1,mixed:512`, `decode` or `mixed` for all sizes of a phase, nothing for all sizes."""
    whole = {"decode": DECODE_SIZES, "mixed": MIXED_SIZES}
    found: list[Bucket] = []
    for part in (text or "decode,mixed").split(","):
        word = part.strip()
        found += [Bucket(word, n) for n in whole[word]] if word in whole else [Bucket.parse(word)]
    return tuple(dict.fromkeys(found))


def wish_for(
    source: ModelSource,
    target: str,
    *,
    sizes: str | None = None,
    wanted: str | None = None,
    effort: str = "normal",
    dtype: str = "bfloat16",
    tables: Path | None = None,
) -> Wish:
    """What is to be tuned; `UsageError` and `UnsupportedError` name what cannot be."""
    device = parse_target(target)
    if device.is_cpu:
        raise UnsupportedError("the CPU target has no tiles to tune", where="--target")
    if effort not in EFFORTS:
        raise UsageError(f"effort {quote(effort)}", allowed=", ".join(EFFORTS))
    model = lowered(source, dtype)
    return Wish(
        graph=model.graph,
        vocabulary=model.spec.vocab,
        max_positions=model.spec.max_positions,
        device=device,
        tables=Tables(tables or tables_dir()),
        buckets=buckets(sizes),
        largest_mixed=max(MIXED_SIZES),
        effort=effort,
        families=_families(wanted),
    )


def _families(text: str | None) -> frozenset[str]:
    wanted = frozenset(part.strip() for part in text.split(",")) if text else frozenset()
    for name in wanted - set(families()):
        raise UsageError(f"family {quote(name)}", allowed=", ".join(families()))
    return wanted


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
    emitter = Emitter.of(wish)
    made = emitter.emitted(emitter.planned, Store(), jobs=jobs, progress=progress)
    size = write_bundle(path, made.bundle, made.codes)
    groups = made.bundle.groups
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
    emitter = Emitter.of(wish)
    from kernelgen import __version__

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
        problems += broken
        if not any(line["kind"] == "begin" for line in lines):
            raise UsageError("is no journal of a sweep", where=str(path))
        rows += rows_in(lines, provenance)
    done = bring(rows, tables or tables_dir())
    return replace(done, problems=tuple(problems))


def default_journal(bundle: Path) -> Path:
    """Beside the bundle, under its name."""
    return bundle.with_name(f"{bundle.stem}.journal.jsonl")
