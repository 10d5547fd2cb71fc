"""Sweeps with a fake measurer: kills, crashes, hangs, neighbours and budgets cost no more than they
must, and nothing disturbed or wrong is shipped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tune_toys import (
    bundle,
    group,
    kill,
    lines_of,
    place,
    rows_of,
    start,
    wait_for,
    write,
)

from kernelgen.cli.tune import Measuring, measure_bundle, merge_journals
from kernelgen.core.errors import NoDeviceError, UsageError
from kernelgen.tables.file import read_rows, table_path
from kernelgen.tune.crew import Crew
from kernelgen.tune.fake_measurer import FakeMeasurer
from kernelgen.tune.findings import Found, finalists
from kernelgen.tune.journal import Notes, open_journal, read_journal
from kernelgen.tune.measurer import Canary, Machine
from kernelgen.tune.sweep import Outcome, Part, Progress, Settings, Sweep, in_order


def measured(path: Path, journal: Path, fake: Mapping[str, Any] = {}, **how: Any) -> Outcome:
    """A sweep whose child measures as `fake` says."""
    return measure_bundle(path, journal, Measuring(kind=f"fake:{json.dumps(fake)}", **how))


def test_the_fastest_right_tile_of_every_kernel_becomes_a_row(tmp_path: Path) -> None:
    made = bundle(3)
    journal = tmp_path / "journal"
    done = measured(write(tmp_path, made), journal)
    assert (done.measured, done.left, done.flagged, done.bad) == (3, 0, 0, 0)
    rows = rows_of(journal)
    assert [row["variant"] for row in rows] == ["variant 0", "variant 1", "variant 2"]
    fake = FakeMeasurer()
    for row, one in zip(rows, made.groups, strict=True):
        times = {c.id: sorted(fake.fine(one, c, 9).us)[4] for c in one.candidates}
        best = min(times, key=lambda name: times[name])
        chosen = next(c for c in one.candidates if dict(c.choice) == row["choice"])
        assert chosen.id == best and row["us"] == round(times[best], 3)
        assert row["us_p10"] <= row["us"] <= row["us_p90"] and row["samples"] == 9


def test_a_sweep_killed_in_the_middle_gives_the_same_table(tmp_path: Path) -> None:
    made = bundle(4)
    path = write(tmp_path, made)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    measured(path, whole)
    sweep = start(path, halves, {"delay_s": 0.05})
    wait_for(lambda: halves.exists() and len(lines_of(halves, "group")) >= 2)
    kill(sweep)
    assert 2 <= len(lines_of(halves, "group")) < 4
    done = measured(path, halves)
    assert done.resumed >= 2 and done.resumed + done.measured == 4
    tables = []
    for journal in (whole, halves):
        folder = tmp_path / f"{journal.name}_tables"
        folder.mkdir()
        merge_journals([journal], folder, provenance="a test")
        text = table_path(folder, "sm_90", "h200", "gemv").read_text()
        date = lines_of(journal, "begin")[0]["date"]
        assert text.count(date) == 4
        tables.append(text.replace(date, ""))
    assert tables[0] == tables[1]


def test_half_a_line_at_the_end_is_cut_off(tmp_path: Path) -> None:
    path, journal = write(tmp_path, bundle(2)), tmp_path / "journal"
    measured(path, journal)
    expected = rows_of(journal)
    data = journal.read_bytes()
    last = data[:-1].rfind(b"\n") + 1
    journal.write_bytes(data[: last + 40])
    done = measured(path, journal)
    assert (done.resumed, done.measured) == (1, 1)
    assert read_journal(journal)[1] == () and rows_of(journal) == expected


def test_a_crash_and_a_hang_cost_one_candidate_each(tmp_path: Path) -> None:
    made = bundle(2)
    path, journal, log = write(tmp_path, made), tmp_path / "journal", tmp_path / "log"
    fake = {"crash": [place(made, 0, 1)], "hang": [place(made, 0, 2)], "log": str(log)}
    done = measured(path, journal, fake, time_limit_s=0.7)
    assert (done.measured, done.bad, done.flagged) == (2, 2, 0)
    bad = {line["candidate"]: line["bad"] for line in lines_of(journal, "coarse") if line["bad"]}
    assert len(bad) == 2
    assert "signal 6" in bad[made.groups[0].candidates[1].id]
    assert "longer than" in bad[made.groups[0].candidates[2].id]
    assert len(rows_of(journal)) == 2
    told = log.read_text().splitlines()
    for tile in (1, 2):  # what took its process along is not tried again, in no attempt
        assert told.count(f"coarse {place(made, 0, tile)}") == 1


def test_a_wrong_candidate_is_never_the_winner(tmp_path: Path) -> None:
    made = bundle(1)
    path = write(tmp_path, made)
    measured(path, tmp_path / "all")
    first = rows_of(tmp_path / "all")[0]["choice"]
    number = next(
        i for i, c in enumerate(made.groups[0].candidates) if dict(c.choice) == dict(first)
    )
    done = measured(path, tmp_path / "wrong", {"wrong": [place(made, 0, number)]})
    assert done.bad == 1 and rows_of(tmp_path / "wrong")[0]["choice"] != first


def test_a_kernel_that_is_all_wrong_has_no_row(tmp_path: Path) -> None:
    made = bundle(2)
    wrong = [place(made, 0, i) for i in range(4)]
    done = measured(write(tmp_path, made), tmp_path / "journal", {"wrong": wrong})
    assert done.bad == 4
    assert [row["variant"] for row in rows_of(tmp_path / "journal")] == ["variant 1"]


def test_a_kernel_that_cannot_be_set_up_is_told_and_passed_over(tmp_path: Path) -> None:
    made = bundle(2)
    done = measured(write(tmp_path, made), tmp_path / "j", {"refuse": [made.groups[0].id]})
    assert (done.measured, done.flagged) == (2, 1)
    flags = {line["group"]: line["flag"] for line in lines_of(tmp_path / "j", "group")}
    assert "no room" in flags[made.groups[0].id] and not flags[made.groups[1].id]


def test_a_child_that_never_starts_ends_the_run_with_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, bundle(2))
    with pytest.raises(NoDeviceError, match="does not start") as caught:
        measure_bundle(path, tmp_path / "j", Measuring(kind="fake:no json"))
    assert "repeat the command" in str(caught.value)
    assert measured(path, tmp_path / "j").measured == 2, "and the next one begins where it was"


def test_a_neighbour_is_flagged_and_not_shipped(tmp_path: Path) -> None:
    made = bundle(3)
    path, busy, log = write(tmp_path, made), tmp_path / "busy", tmp_path / "log"
    # The neighbour comes once the clocks are settled, and stays.
    sweep = start(path, tmp_path / "j", {"busy": str(busy), "delay_s": 0.02, "log": str(log)})
    wait_for(lambda: log.exists() and log.read_text())
    busy.touch()
    assert sweep.wait(timeout=60) == 0
    flags = [line["flag"] for line in lines_of(tmp_path / "j", "group")]
    assert len(flags) == 3 and all("2500" in flag and "4000" in flag for flag in flags)
    assert rows_of(tmp_path / "j") == []
    coarse = f"coarse {place(made, 0, 0)}"
    assert log.read_text().splitlines().count(coarse) == 3, "measured again before it is given up"


def test_what_was_disturbed_for_a_while_is_measured_again(tmp_path: Path) -> None:
    made = bundle(1)
    path, busy, log = write(tmp_path, made), tmp_path / "busy", tmp_path / "log"
    sweep = start(path, tmp_path / "j", {"busy": str(busy), "delay_s": 0.05, "log": str(log)})
    wait_for(lambda: log.exists() and log.read_text())
    busy.touch()
    wait_for(lambda: log.read_text().count(f"coarse {place(made, 0, 0)}") == 2)
    busy.unlink()
    assert sweep.wait(timeout=60) == 0
    assert [line["flag"] for line in lines_of(tmp_path / "j", "group")] == [""]
    assert {line["attempt"] for line in lines_of(tmp_path / "j", "coarse")} >= {0, 1}
    quiet = tmp_path / "quiet"
    measured(path, quiet)
    assert rows_of(tmp_path / "j") == rows_of(quiet)


def test_disturbed_kernels_are_measured_again_by_the_next_run(tmp_path: Path) -> None:
    made = bundle(2)
    path, journal = write(tmp_path, made), tmp_path / "j"
    measured(path, journal, {"refuse": [made.groups[0].id]})
    done = measured(path, journal)
    assert (done.resumed, done.measured, done.flagged) == (1, 1, 0)
    assert len(rows_of(journal)) == 2


def test_other_code_is_measured_again(tmp_path: Path) -> None:
    made = bundle(2)
    path, journal = write(tmp_path, made), tmp_path / "j"
    assert measured(path, journal, {"wrong": [place(made, 0, 1)]}).bad == 1
    first = made.groups[0]
    changed = replace(
        first,
        code="1" * 64,
        candidates=tuple(replace(c, source="1" * 64) for c in first.candidates),
    )
    other = write(tmp_path, replace(made, groups=(changed, made.groups[1])), "other.zip")
    log = tmp_path / "log"
    done = measured(other, journal, {"log": str(log)})
    assert (done.resumed, done.measured) == (1, 1)
    assert f"coarse {place(made, 0, 1)}" in log.read_text().splitlines(), "it may be right now"


def _sweep(folder: Path, clock: Any, minutes: float | None, book: Notes) -> Sweep:
    return Sweep(Crew("fake:{}", folder), book, Settings(minutes), clock=clock, total=3)


@pytest.mark.parametrize(("minutes", "expected"), [(0.0, 0), (1.5, 1), (None, 3)])
def test_a_budget_ends_a_sweep_between_two_kernels(
    tmp_path: Path, minutes: float | None, expected: int
) -> None:
    path = write(tmp_path, bundle(3))
    now = [0.0]
    sweep = _sweep(
        tmp_path, lambda: now[0], minutes, Notes([{"kind": "begin", "date": "2026-11-30"}])
    )
    sweep.tell = lambda step: now.__setitem__(0, now[0] + 100 * step.finished)
    try:
        done = sweep.run([Part(path, bundle(3))])
    finally:
        sweep.crew.kill()
    assert (done.measured, done.left) == (expected, 3 - expected)


def test_a_clock_that_goes_backwards_ends_nothing(tmp_path: Path) -> None:
    """The date is that of the beginning, and time only ever decides when to stop."""
    path = write(tmp_path, bundle(2))
    times = iter([100.0, *[50.0 - i for i in range(1000)]])
    sweep = _sweep(
        tmp_path, lambda: next(times), 1.0, Notes([{"kind": "begin", "date": "2026-11-30"}])
    )
    try:
        done = sweep.run([Part(path, bundle(2))])
    finally:
        sweep.crew.kill()
    assert done.measured == 2


def test_an_older_date_replaces_no_row(tmp_path: Path) -> None:
    path = write(tmp_path, bundle(1))
    tables = tmp_path / "tables"
    tables.mkdir()
    for name, date in (("new", "2026-11-30T10:00:00Z"), ("old", "2026-11-29T10:00:00Z")):
        measured(path, tmp_path / name)
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(
            text.replace(lines_of(tmp_path / name, "begin")[0]["date"], date)
        )
    assert merge_journals([tmp_path / "new"], tables).added == 1
    assert merge_journals([tmp_path / "old"], tables).kept == 1
    rows = read_rows(table_path(tables, "sm_90", "h200", "gemv")).rows
    assert [row.date for row in rows] == ["2026-11-30T10:00:00Z"]


def test_two_sweeps_into_one_journal_are_refused(tmp_path: Path) -> None:
    path, journal = write(tmp_path, bundle(1)), tmp_path / "journal"
    with (
        open_journal(journal, "w" * 64),
        pytest.raises(UsageError, match="another sweep") as caught,
    ):
        measured(path, journal)
    assert "\n" not in str(caught.value).strip() and str(journal) in str(caught.value)


def test_the_journal_of_another_bundle_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    measured(write(tmp_path, bundle(1)), journal)
    before = journal.read_bytes()
    other = write(tmp_path, bundle(1, wish="v" * 64), "other.zip")
    with pytest.raises(UsageError, match="another bundle"):
        measured(other, journal)
    assert journal.read_bytes() == before


def test_a_file_that_is_no_journal_is_left_as_it_is(tmp_path: Path) -> None:
    journal = tmp_path / "rows.jsonl"
    journal.write_text('{"kind": "other"}\n')
    with pytest.raises(UsageError, match="no journal"):
        measured(write(tmp_path, bundle(1)), journal)
    assert journal.read_text() == '{"kind": "other"}\n'


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_read_only_is_one_line(tmp_path: Path) -> None:
    path, folder = write(tmp_path, bundle(1)), tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(UsageError) as caught:
        measured(path, folder / "journal")
    assert str(folder) in str(caught.value)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, bundle(1))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught:
        measured(path, tmp_path / "file" / "journal")
    assert "\n" not in str(caught.value).strip()
    measured(path, tmp_path / "journal")
    with pytest.raises(UsageError):
        merge_journals([tmp_path / "journal"], tmp_path / "file")


def test_groups_with_most_to_gain_come_first(tmp_path: Path) -> None:
    used, rival = replace(group(1), chosen=True), replace(group(0), chosen=False)
    assert [g.kernel for g in in_order([rival, used])] == ["kernel_1", "kernel_0"]
    seen: list[Progress] = []
    measure_bundle(
        write(tmp_path, bundle(3)), tmp_path / "j", Measuring(kind="fake:{}"), seen.append
    )
    finished = [step for step in seen if step.finished]
    assert [step.kernel for step in finished] == ["kernel_0", "kernel_1", "kernel_2"]
    assert [step.done for step in finished] == [1, 2, 3] and finished[-1].total == 3
    assert any(not step.finished and step.us for step in seen), "the best so far is told meanwhile"


def _found(us: Mapping[str, list[float]], elsewhere: Mapping[str, list[float | None]]) -> Found:
    lines = {
        name: {"us": times, "elsewhere": elsewhere[name], "bad": "", "share": 0.5}
        for name, times in us.items()
    }
    canary = Canary(4000.0)
    return Found(Machine("", "", "", canary), (canary, canary), 4000.0, lines, lines)


def test_contexts_count_in_proportion_to_what_is_read() -> None:
    """1,024 planned: 128 entries and 8,192 entries weigh as much as they would at that length."""
    one = group(0, tiles=2, elsewhere=(128, 8192))
    first, second = (c.id for c in one.candidates)
    long = _found({first: [10.0], second: [11.0]}, {first: [2.0, 90.0], second: [2.0, 70.0]})
    assert long.best(one) == (one.candidates[1], 11.0), "the row keeps the planned context's time"
    short = _found({first: [10.0], second: [11.0]}, {first: [2.0, 90.0], second: [1.9, 86.0]})
    assert short.best(one) == (one.candidates[1], 11.0)
    equal = _found({first: [10.0], second: [11.0]}, {first: [2.0, 90.0], second: [2.0, 90.0]})
    assert equal.best(one) == (one.candidates[0], 10.0)


def test_noise_decides_nothing() -> None:
    """Of even tiles the one in use stays, else the model's first: another run decides the same."""
    one = group(0, tiles=3)
    names = [c.id for c in one.candidates]
    nothing: dict[str, list[float | None]] = {name: [] for name in names}

    def chosen(*us: float) -> int:
        best = _found({name: [t] for name, t in zip(names, us, strict=True)}, nothing).best(one)
        assert best is not None
        return one.candidates.index(best[0])

    assert dict(one.before) == dict(one.candidates[1].choice)
    assert chosen(10.0, 10.05, 10.3) == chosen(10.05, 10.0, 10.3) == chosen(10.3, 10.05, 10.0) == 1
    assert chosen(10.0, 10.3, 10.05) == chosen(10.05, 10.3, 10.0) == 0
    assert chosen(10.3, 10.3, 10.0) == 2


def test_all_that_are_close_are_measured_well() -> None:
    """A few samples tell what is 5% apart at best: which three come first is chance below that."""
    one = group(0, tiles=12)

    def count(step: float) -> int:
        coarse = {
            c.id: {"us": [10.0 * (1 + step * i)], "bad": "", "share": 0.5}
            for i, c in enumerate(one.candidates)
        }
        return len(finalists(one, coarse))

    assert (count(0.1), count(0.012), count(0.001)) == (3, 5, 8)


def test_samples_that_differ_are_suspicious() -> None:
    one = group(0, tiles=2)
    first, second = (c.id for c in one.candidates)
    calm = _found({first: [10.0, 10.1, 10.2], second: [11.0]}, {first: [], second: []})
    assert calm.quiet and calm.best(one) is not None
    torn = _found({first: [10.0, 10.1, 14.0], second: [11.0]}, {first: [], second: []})
    assert not torn.quiet and "spread" in torn.why


def test_a_context_without_room_is_left_out_and_recorded(tmp_path: Path) -> None:
    made = bundle(1, groups=(group(0, elsewhere=(128, 8192)),))
    path, journal = write(tmp_path, made), tmp_path / "j"
    measured(path, journal, {"room": 4096})
    for line in lines_of(journal, "fine"):
        short, long = line["elsewhere"]
        assert short > 0 and long is None
    assert len(rows_of(journal)) == 1
