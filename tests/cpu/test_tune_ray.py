"""A sweep over a local Ray cluster gives the table that one process gives."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tune_toys import bundle, lines_of, place, rows_of, write

from kernelgen.cli.tune import Measuring, measure_bundle
from kernelgen.core.errors import UnsupportedError
from kernelgen.tune.sweep import Progress


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two processors, no GPU."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    yield "local"
    ray.shutdown()


def over_ray(path: Path, journal: Path, cluster: str, fake: dict[str, Any], **how: Any) -> Any:
    """Outcome and what was told."""
    told: list[Progress] = []
    kind = f"fake:{json.dumps(fake)}"
    done = measure_bundle(path, journal, Measuring(kind=kind, ray=cluster, **how), told.append)
    return done, told


def test_the_table_is_that_of_one_process(cluster: str, tmp_path: Path) -> None:
    made = bundle(5)
    path = write(tmp_path, made)
    measure_bundle(path, tmp_path / "alone", Measuring(kind="fake:{}"))
    done, told = over_ray(path, tmp_path / "many", cluster, {})
    assert (done.measured, done.left, done.flagged, done.bad) == (5, 0, 0, 0)
    assert [step.done for step in told] == [1, 2, 3, 4, 5]
    by_variant = {row["variant"]: row for row in rows_of(tmp_path / "alone")}
    assert {row["variant"]: row for row in rows_of(tmp_path / "many")} == by_variant


def test_crashes_cost_candidates_and_a_second_run_goes_on(cluster: str, tmp_path: Path) -> None:
    made = bundle(4)
    path, journal = write(tmp_path, made), tmp_path / "journal"
    fake = {"crash": [place(made, 0, 1)], "hang": [place(made, 1, 1)]}
    done, _ = over_ray(path, journal, cluster, fake, time_limit_s=0.7)
    assert (done.measured, done.bad) == (4, 2)
    lines = journal.read_text().splitlines()
    last = [i for i, line in enumerate(lines) if json.loads(line)["kind"] == "group"][-1]
    journal.write_text("".join(f"{line}\n" for line in lines[:last]))
    done, _ = over_ray(path, journal, cluster, fake, time_limit_s=0.7)
    assert (done.measured, done.resumed) == (1, 3)
    assert len(rows_of(journal)) == 4


def test_a_spent_budget_starts_nothing(cluster: str, tmp_path: Path) -> None:
    path = write(tmp_path, bundle(3))
    done, _ = over_ray(path, tmp_path / "j", cluster, {}, minutes=0.0)
    assert (done.measured, done.left) == (0, 3) and not lines_of(tmp_path / "j", "group")


def test_without_ray_one_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def none(name: str, *rest: Any, **named: Any) -> Any:
        if name == "ray":
            raise ImportError("no ray")
        return real(name, *rest, **named)

    path = write(tmp_path, bundle(1))
    monkeypatch.setattr(builtins, "__import__", none)
    with pytest.raises(UnsupportedError, match=r"kernelgen\[ray\]"):
        over_ray(path, tmp_path / "j", "auto", {})
