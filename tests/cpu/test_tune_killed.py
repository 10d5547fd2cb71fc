"""Sweeps that were killed: the journal decides what counts, and the table is that of one run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tune_toys import bundle, group, lines_of, rows_of

from kernelgen.tune.bundle import Bundle
from kernelgen.tune.crew import Crew
from kernelgen.tune.fake_measurer import FakeMeasurer
from kernelgen.tune.journal import open_journal, read_journal
from kernelgen.tune.measurer import Canary, Machine, Sample
from kernelgen.tune.sweep import Part, Sweep

TILES = 5


class Noisy(Crew):
    """A crew without a process: tiles are even but for noise, which no two measurements share."""

    def __init__(self, made: Bundle, seed: int, quiet: bool = True, device: str = "Fake") -> None:
        super().__init__("fake:{}", Path())
        self.groups = {g.id: g for g in made.groups}
        self.noise = random.Random(seed)
        self.rate, self.device = 4000.0 if quiet else 2500.0, device
        self.asked: list[tuple[str, str, str]] = []

    def settle(self) -> Machine:
        self.machine = Machine(self.device, "1.0", "0", Canary(4000.0))
        return self.machine

    def use(self, bundle: Path) -> None:
        pass

    def open(self, group: str) -> None:
        pass

    def canary(self) -> Canary:
        return Canary(self.rate)

    def coarse(self, group: str, candidate: str) -> Sample:
        return self._sample("coarse", group, candidate, 1)

    def fine(self, group: str, candidate: str, samples: int) -> Sample:
        return self._sample("fine", group, candidate, samples)

    def _sample(self, kind: str, group: str, candidate: str, count: int) -> Sample:
        self.asked.append((kind, group, candidate))
        middle = 10.0 * self.noise.uniform(0.98, 1.02)
        return Sample(tuple(round(middle + 0.001 * i, 4) for i in range(count)), 0.5)


class Killed(Exception):
    """The end of a run, after a line."""


def _bundle() -> Bundle:
    return bundle(0, groups=tuple(group(i, tiles=TILES) for i in range(2)))


def run(made: Bundle, journal: Path, crew: Noisy, die_after: int | None = None) -> None:
    """A sweep that ends for good once its journal has so many lines."""
    with open_journal(journal, "w" * 64, date="2026-12-01T00:00:00Z") as book:
        add = book.add

        def counted(kind: str, /, **fields: Any) -> None:
            if die_after is not None and len(book.lines) >= die_after:
                raise Killed
            add(kind, **fields)

        book.add = counted  # type: ignore[method-assign]
        Sweep(crew, book).run([Part(journal, made)])


def _kill(made: Bundle, journal: Path, crew: Noisy, after: int) -> None:
    with pytest.raises(Killed):
        run(made, journal, crew, after)


def test_wherever_it_is_killed_what_counted_is_not_drawn_again(tmp_path: Path) -> None:
    """Two per cent of noise on even tiles: the second run's own draws would choose another tile.

    Whatever a word vouches for keeps its time to the table; what comes after it is drawn again.
    """
    made = _bundle()
    run(made, tmp_path / "whole", Noisy(made, 1))
    whole = read_journal(tmp_path / "whole")[0]
    for after in range(1, len(whole)):
        path, second = tmp_path / f"{after}", Noisy(made, 1000 + after)
        _kill(made, path, Noisy(made, 1), after)
        run(made, path, second)
        vouched = _vouched(whole[:after])
        assert not vouched & set(second.asked), after
        lines = read_journal(path)[0]
        assert _last(lines, vouched) == _last(whole, vouched), after
        assert _decided_by_the_journal(made, lines), after
        marks = [i for i, line in enumerate(whole[:after]) if line["kind"] in ("quiet", "group")]
        if marks and marks[-1] == after - 1 and len(vouched) == len(_vouched(whole)):
            assert _choices(path) == _choices(tmp_path / "whole"), after


def test_two_kills_are_no_worse_than_one(tmp_path: Path) -> None:
    made = _bundle()
    run(made, tmp_path / "whole", Noisy(made, 1))
    count = len(read_journal(tmp_path / "whole")[0])
    for seed in range(25):
        path, draws = tmp_path / f"{seed}", random.Random(seed)
        first = draws.randrange(2, count - 2)
        _kill(made, path, Noisy(made, 1), first)
        before = _vouched(read_journal(path)[0])
        _kill(made, path, Noisy(made, 50 + seed), first + draws.randrange(1, 3))
        between = read_journal(path)[0]
        third = Noisy(made, 90 + seed)
        run(made, path, third)
        assert before <= _vouched(between) and not _vouched(between) & set(third.asked)
        assert _decided_by_the_journal(made, read_journal(path)[0])


def test_a_measurer_without_noise_gives_the_same_table_after_every_kill(tmp_path: Path) -> None:
    made = _bundle()
    run(made, tmp_path / "whole", Steady(made, 0))
    expected = rows_of(tmp_path / "whole")
    assert len(expected) == 2
    for after in range(1, len(read_journal(tmp_path / "whole")[0])):
        path = tmp_path / f"{after}"
        _kill(made, path, Steady(made, 0), after)
        run(made, path, Steady(made, 0))
        assert rows_of(path) == expected, after


class Steady(Noisy):
    """Times that follow from the candidate alone."""

    def _sample(self, kind: str, group: str, candidate: str, count: int) -> Sample:
        one = self.groups[group]
        return FakeMeasurer().fine(one, next(c for c in one.candidates if c.id == candidate), count)


@pytest.mark.parametrize("how", ["no word", "other code", "other device", "edited", "busy"])
def test_times_that_nobody_vouches_for_here_do_not_count(tmp_path: Path, how: str) -> None:
    made, path = bundle(0, groups=(group(0, tiles=TILES),)), tmp_path / "journal"
    run(made, path, Noisy(made, 1, quiet=True))
    lines = [line for line in read_journal(path)[0] if line["kind"] != "group"]
    if how == "no word":
        lines = [line for line in lines if line["kind"] != "quiet"]
    if how == "edited":
        lines = [dict(line) | {"coarse": 3, "ceiling": "fast"} for line in lines]
    path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    if how == "other code":
        tiles = tuple(replace(c, source="1" * 64) for c in made.groups[0].candidates)
        made = replace(made, groups=(replace(made.groups[0], code="1" * 64, candidates=tiles),))
    device = "another" if how == "other device" else "Fake"
    second = Noisy(made, 2, quiet=how != "busy", device=device)
    run(made, path, second)
    assert {a[2] for a in second.asked if a[0] == "coarse"} == {
        c.id for c in made.groups[0].candidates
    }


def test_a_finished_group_that_was_disturbed_lends_nothing_to_its_next_run(tmp_path: Path) -> None:
    made, path = bundle(0, groups=(group(0, tiles=TILES),)), tmp_path / "journal"
    run(made, path, Noisy(made, 1))
    text = [json.loads(line) for line in path.read_text().splitlines()]
    text[-1]["flag"] = "a neighbour came late"
    path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in text))
    second = Noisy(made, 2)
    run(made, path, second)
    assert len([a for a in second.asked if a[0] == "coarse"]) == TILES


def _vouched(lines: Iterable[Mapping[str, Any]]) -> set[tuple[str, str, str]]:
    """Measurements of each group that its last word names."""
    last = {line["group"]: line for line in lines if line["kind"] == "quiet"}
    return {
        (kind, name, one)
        for name, line in last.items()
        for kind in ("coarse", "fine")
        for one in line[kind]
    }


def _last(
    lines: Iterable[Mapping[str, Any]], of: set[tuple[str, str, str]]
) -> dict[tuple[str, str, str], Any]:
    found = {}
    for line in lines:
        key = (line["kind"], str(line.get("group")), str(line.get("candidate")))
        if key in of:
            found[key] = line["us"]
    return found


def _decided_by_the_journal(made: Bundle, lines: Iterable[Mapping[str, Any]]) -> bool:
    """Whether every row follows from the last times of its candidates: of those within 1% of the
    fastest the tile in use, else the first."""
    lines = list(lines)
    for one in made.groups:
        fine = {
            line["candidate"]: sorted(line["us"])[len(line["us"]) // 2]
            for line in lines
            if line["kind"] == "fine" and line["group"] == one.id
        }
        even = [c for c in one.candidates if fine.get(c.id, 1e9) <= min(fine.values()) * 1.01]
        expected = next((c for c in even if c.choice == one.before), even[0])
        row = next(ln for ln in lines if ln["kind"] == "group" and ln["group"] == one.id)["row"]
        if row["choice"] != dict(expected.choice) or row["us"] != round(fine[expected.id], 3):
            return False
    return True


def _choices(journal: Path) -> list[Any]:
    return [line["row"]["choice"] for line in lines_of(journal, "group")]
