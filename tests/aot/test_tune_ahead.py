"""Candidates that are really compiled, measured by a fake: all at once, and compiled beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelgen.cli.model import resolve
from kernelgen.cli.tune import Measuring, emit_bundle, measure_ahead, measure_bundle, wish_for
from kernelgen.compile.cpp import BuildStep
from kernelgen.core.digest import digest_bytes
from kernelgen.tune.bundle_file import BundleFile
from kernelgen.tune.emit import Emitter, Wish
from kernelgen.tune.journal import read_journal
from kernelgen.tune.rows import rows_in
from kernelgen.tune.sweep import Progress

FAKE = Measuring(kind="fake:{}")


@pytest.fixture(scope="module")
def wish() -> Wish:
    """A few small kernels of a tiny model."""
    return wish_for(
        resolve("smollm2-135m-instruct"),
        "sm_90:h200",
        sizes="decode:1",
        wanted="rows",
        effort="quick",
    )


def test_compiling_meanwhile_and_beforehand_give_the_same_rows(wish: Wish, tmp_path: Path) -> None:
    compiled: list[BuildStep] = []
    told: list[Progress] = []
    ahead, beforehand = tmp_path / "ahead", tmp_path / "beforehand"
    done = measure_ahead(wish, ahead, FAKE, jobs=2, progress=compiled.append, tell=told.append)
    assert done.measured > 2 and done.left == 0
    assert [step.done for step in told if step.finished] == list(range(1, done.measured + 1))
    assert compiled[-1].done == compiled[-1].total
    bundle = tmp_path / "bundle.zip"
    emission = emit_bundle(wish, bundle, jobs=2)
    assert emission.groups == done.measured and emission.codes <= emission.candidates
    file = BundleFile(bundle)
    for code in file.bundle.codes:
        assert digest_bytes(file.code(code)) == code
    measure_bundle(bundle, beforehand, FAKE)
    rows = [
        {(r.variant, r.us, str(r.choice), r.source) for r in rows_in(read_journal(path)[0])[0]}
        for path in (ahead, beforehand)
    ]
    assert rows[0] == rows[1] and len(rows[0]) == done.measured
    # One journal serves both ways.
    again = measure_bundle(bundle, ahead, FAKE)
    assert (again.measured, again.resumed) == (0, done.measured)


def test_a_second_run_compiles_and_measures_what_is_left(wish: Wish, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    done = measure_ahead(wish, journal, FAKE, jobs=2)
    lines = journal.read_text().splitlines()
    kept = [i for i, line in enumerate(lines) if '"kind":"group"' in line][1]
    journal.write_text("".join(f"{line}\n" for line in lines[: kept + 1]))
    again = measure_ahead(wish, journal, FAKE, jobs=2)
    assert (again.resumed, again.measured) == (2, done.measured - 2)


def test_a_sweep_that_stops_stops_the_compilers(wish: Wish, tmp_path: Path) -> None:
    done = measure_ahead(wish, tmp_path / "j", Measuring(minutes=0.0, kind="fake:{}"), jobs=2)
    assert done.measured == 0 and done.left == len(Emitter.of(wish).planned)


def test_what_cannot_be_measured_here_ends_with_one_line(wish: Wish, tmp_path: Path) -> None:
    from kernelgen.core.errors import KernelgenError

    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(KernelgenError, match="GPU"):
        measure_ahead(wish, tmp_path / "j", jobs=2)
