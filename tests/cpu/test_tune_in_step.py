"""Tiles chosen inside the whole step, with a fake measurer: what is faster there has the row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tune_toys import bundle, kill, lines_of, rows_of, start, wait_for, write

from kernelgen.archs.registry import builtin_models
from kernelgen.cli.model import resolve
from kernelgen.cli.tune import Measuring, measure_bundle, merge_journals, wish_for
from kernelgen.core.errors import UsageError
from kernelgen.tables.file import read_rows, table_path
from kernelgen.tune.bundle import Bundle, Extents, Group, StepFacts, Use
from kernelgen.tune.fake_measurer import FakeMeasurer
from kernelgen.tune.in_step import NEAR
from kernelgen.tune.sweep import Outcome

FAKE = FakeMeasurer()


def stepped(count: int = 3, launches: int = 4) -> Bundle:
    """Kernels whose tiles all take nearly the same by themselves, in a step of some launches."""
    made = bundle(count)
    groups = tuple(
        replace(g, candidates=tuple(replace(c, modelled_us=10.0) for c in g.candidates))
        for g in made.groups
    )
    uses = tuple(Use(g.id, None, ()) for _ in range(launches) for g in groups)
    step = StepFacts(
        "toy", "decode:1", Extents(1, 1, 1024, 1), (), uses, tuple(g.id for g in groups), (),
        (0, 0, 0), 0, False,
    )  # fmt: skip
    return replace(made, groups=groups, steps=(step,))


def measured(path: Path, journal: Path, fake: Mapping[str, Any] = {}, **how: Any) -> Outcome:
    return measure_bundle(path, journal, Measuring(kind=f"fake:{json.dumps(fake)}", **how))


def near(group: Group) -> list[str]:
    """Candidates whose time by itself is near the best one's."""
    us = {c.id: FAKE._us(f"{group.id}/{c.id}", c, 0) for c in group.candidates}
    return [name for name, t in us.items() if t <= NEAR * min(us.values())]


def inside(group: Group, name: str) -> float:
    return FAKE.inside_us(group.id, {group.id: name})


def row_choice(journal: Path, group: Group) -> dict[str, int]:
    return next(dict(r["choice"]) for r in rows_of(journal) if r["variant"] == group.variant)


def id_of(choice: Mapping[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(choice.items()))


@pytest.fixture
def near_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate is near enough to be tried."""
    monkeypatch.setattr("kernelgen.tune.in_step.NEAR", 3.0)


@pytest.mark.usefixtures("near_together")
def test_the_tile_that_shortens_the_step_has_the_row(tmp_path: Path) -> None:
    made, journal = stepped(), tmp_path / "journal"
    done = measured(write(tmp_path, made), journal)
    assert (done.measured, done.decided, done.undecided) == (3, 3, 0)
    alone_is_another = 0
    for group in made.groups:
        chosen = id_of(row_choice(journal, group))
        assert inside(group, chosen) == min(inside(group, c.id) for c in group.candidates)
        alone = min(group.candidates, key=lambda c: FAKE._us(f"{group.id}/{c.id}", c, 0))
        alone_is_another += chosen != alone.id
    assert alone_is_another, "the toys show nothing"
    assert all(row["us"] > 5 for row in rows_of(journal)), "times are those of the tile's own chain"


def test_what_is_slow_by_itself_is_not_tried(tmp_path: Path) -> None:
    made, log = stepped(), tmp_path / "log"
    measured(write(tmp_path, made), tmp_path / "journal", {"log": str(log)})
    tried = [json.loads(t.split(" ", 2)[2]) for t in log.read_text().splitlines() if "whole" in t]
    before = id_of(made.groups[0].before)
    for group in made.groups:
        asked = {trial[group.id] for trial in tried if group.id in trial}
        assert asked <= {*near(group), before}


@pytest.mark.usefixtures("near_together")
def test_rows_say_what_chose_them(tmp_path: Path) -> None:
    made, journal = stepped(2), tmp_path / "journal"
    measured(write(tmp_path, made), journal)
    folder = tmp_path / "tables"
    folder.mkdir()
    merge_journals([journal], folder)
    rows = read_rows(table_path(folder, "sm_90", "h200", "gemv")).rows
    assert len(rows) == 2 and all(r.provenance.endswith("-toy-whole-step") for r in rows)
    merge_journals([journal], folder, provenance="mine")
    lines = lines_of(journal, "group")
    assert len(lines) == 4 and all("whole" in line for line in lines[2:])


@pytest.mark.usefixtures("near_together")
def test_a_step_that_is_killed_goes_on_with_what_was_decided(tmp_path: Path) -> None:
    made = stepped(4)
    path, whole, halves = write(tmp_path, made), tmp_path / "whole", tmp_path / "halves"
    measured(path, whole)
    sweep = start(path, halves, {"delay_s": 0.05})
    wait_for(lambda: halves.exists() and len(lines_of(halves, "decided")) >= 1)
    kill(sweep)
    before = len(lines_of(halves, "decided"))
    done = measured(path, halves)
    assert done.measured == 0 and done.undecided == 0
    # The other process tried fewer candidates, those that are near; what it decided stands.
    assert done.decided == 4 - before


@pytest.mark.usefixtures("near_together")
def test_a_crash_and_other_logits_inside_a_step_cost_one_candidate_each(tmp_path: Path) -> None:
    made = stepped(1)
    group = made.groups[0]
    order = sorted((c.id for c in group.candidates), key=lambda name: inside(group, name))
    before = id_of(group.before)
    first, second = order[:2]
    fake = {"crash_whole": [f"{group.id}/{first}"], "wrong_whole": [f"{group.id}/{second}"]}
    journal = tmp_path / "journal"
    done = measured(write(tmp_path, made), journal, fake)
    assert done.decided == 1
    chosen = id_of(row_choice(journal, group))
    assert chosen not in {first, second} - {before}


@pytest.mark.usefixtures("near_together")
def test_a_neighbour_decides_nothing(tmp_path: Path) -> None:
    made, busy, log = stepped(2), tmp_path / "busy", tmp_path / "log"
    path, journal = write(tmp_path, made), tmp_path / "journal"
    sweep = start(path, journal, {"busy": str(busy), "delay_s": 0.05, "log": str(log)})
    wait_for(lambda: log.exists() and "whole" in log.read_text())
    busy.touch()
    assert sweep.wait(timeout=60) == 0
    assert any(line["flag"] for line in lines_of(journal, "decided"))
    for line in lines_of(journal, "decided"):
        assert not line["flag"] or line["candidate"] == line["before"]
    busy.unlink()
    done = measured(path, journal)
    assert done.undecided == 0 and done.decided > 0


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"sizes": "mixed:512"}, "only decode steps"),
        ({"missing": True}, "--missing leaves nothing"),
        ({"effort": "kept"}, "--effort kept leaves nothing"),
    ],
)
def test_what_has_no_meaning_in_a_step_is_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        wish_for(resolve(min(builtin_models())), "sm_90", whole_step=True, **asked)


def test_a_step_stays_on_one_gpu(tmp_path: Path) -> None:
    path = write(tmp_path, stepped())
    with pytest.raises(UsageError, match="one GPU"):
        measure_bundle(path, tmp_path / "j", Measuring(kind="fake:{}", ray="local"))


@pytest.mark.usefixtures("near_together")
def test_decisions_that_do_not_fit_the_bundle_are_made_again(tmp_path: Path) -> None:
    made, journal = stepped(1), tmp_path / "journal"
    path = write(tmp_path, made)
    measured(path, journal)
    (line,) = lines_of(journal, "decided")
    odd = [{"candidate": "tiles=0"}, {"group": "gone"}, {"code": "other"}, {"flag": "busy"}]
    text = [t for t in journal.read_text().splitlines() if '"decided"' not in t]
    text += [json.dumps(line | change) for change in odd]
    journal.write_text("\n".join(text) + "\n")
    assert measured(path, journal).decided == 1
    assert lines_of(journal, "decided")[-1]["candidate"] == line["candidate"]


def test_a_step_of_kernels_that_are_not_there_is_no_bundle() -> None:
    made = stepped()
    with pytest.raises(UsageError, match="not here"):
        replace(made, groups=made.groups[1:])
