"""Proves the tuning tables: one key, strict rows, honest verdicts, files that survive damage."""

from __future__ import annotations

import json
import random
from dataclasses import fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from table_rows import row, row_of, write

from kernelgen.core.errors import UsageError
from kernelgen.core.resources import tables_dir
from kernelgen.tables import (
    Row,
    Tables,
    Verdict,
    merge,
    read_rows,
    rows_to_text,
    tuning_key,
    write_rows,
)
from kernelgen.tables.left_out import left_out
from kernelgen.tables.lookup import NO_DOUBT, Doubt

STALE = Doubt(stale=True)
KEY = tuning_key("sm_90", "h200", "linear", "bf16 n=4096 k=4096", "decode:8")


@pytest.mark.row("B-15")
def test_a_row_answers_its_own_key_only(tmp_path: Path) -> None:
    write(tmp_path, row())
    tables = Tables(tmp_path)
    found = tables.look_up(KEY)
    assert (found.verdict, found.us) == (Verdict.EXACT, 8.9)
    assert found.choice == {"outputs": 2, "tile_k": 2048}
    assert "50 samples" in found.reason and "1830 to 1980 MHz" in found.reason
    for sm, device, variant, bucket in [
        ("sm_100", "b200", KEY.variant, "decode:8"),
        ("sm_90", "h100", KEY.variant, "decode:8"),
        ("sm_90", "h200", KEY.variant + " ", "decode:8"),
        ("sm_90", "h200", KEY.variant, "decode:16"),
        ("sm_90", "h200", KEY.variant, "mixed:8"),
    ]:
        other = tables.look_up(tuning_key(sm, device, "linear", variant, bucket))
        assert (other.verdict, other.row) == (Verdict.MODELLED, None)


def test_a_missing_row_is_refused_when_one_is_required(tmp_path: Path) -> None:
    found = Tables(tmp_path).look_up(KEY, require_tuned=True)
    assert found.verdict is Verdict.REFUSED
    assert "linear at decode:8 on sm_90:h200" in found.reason


def at(size: int) -> Any:
    return tuning_key("sm_90", "h200", "linear", KEY.variant, f"decode:{size}")


def test_between_near_sizes_every_request_adds_the_same(tmp_path: Path) -> None:
    small = row(bucket="decode:16", us=10.0, us_p10=None, us_p90=None)
    large = row(bucket="decode:32", us=20.0, us_p10=None, us_p90=None)
    write(tmp_path, small, large)
    tables = Tables(tmp_path)
    found = tables.look_up(at(24))
    assert found.verdict is Verdict.INTERPOLATED
    assert found.us == pytest.approx(15.0) and found.choice == large["choice"]
    assert "10 µs at decode:16" in found.reason and "20 µs at decode:32" in found.reason


def test_between_different_tiles_the_time_is_modelled(tmp_path: Path) -> None:
    """The nearer tile is taken, but its time is no measurement: it is refused where one is due."""
    small = row(bucket="decode:16", us=10.0, us_p10=None, us_p90=None, choice={"rows": 16})
    large = row(bucket="decode:32", us=20.0, us_p10=None, us_p90=None, choice={"rows": 32})
    write(tmp_path, small, large)
    tables = Tables(tmp_path)
    found = tables.look_up(at(24))  # nearer to 32 as a ratio
    assert (found.verdict, found.choice) == (Verdict.MODELLED, {"rows": 32})
    assert found.us == pytest.approx(15.0) and "whose tiles differ" in found.reason
    assert tables.look_up(at(18)).choice == {"rows": 16}
    # The nearer tile is illegal there: the other one is taken.
    picky = tables.look_up(at(18), lambda r: Doubt(illegal="few" * (r.choice["rows"] < 18)))
    assert picky.choice == {"rows": 32}
    assert not tables.look_up(at(18), lambda r: Doubt(illegal="no")).choice
    assert Tables(tmp_path).look_up(at(24), require_tuned=True).verdict is Verdict.REFUSED
    sizes = [("16", 16), ("24", 32), ("32", 32)]
    assert left_out([row_of(bucket=f"decode:{n}", choice={"rows": r}) for n, r in sizes]) == {}


@pytest.mark.parametrize("high, verdict", [(192, "modelled"), (128, "interpolated")])
def test_few_tiles_are_a_stair(tmp_path: Path, high: int, verdict: str) -> None:
    """65 to 128 rows are two tiles of 64, 192 are three."""
    rows = [row(bucket=f"decode:{n}", choice={"rows": 64}) for n in (96, high)]
    write(tmp_path, *rows)
    assert Tables(tmp_path).look_up(at(120)).verdict == verdict


@pytest.mark.parametrize("size", [7, 8, 33, 64, 65])
def test_far_or_one_sided_sizes_are_not_interpolated(tmp_path: Path, size: int) -> None:
    """Beyond the measured sizes, and where a neighbour is more than twice as large or small."""
    write(tmp_path, row(bucket="decode:16"), row(bucket="decode:32"), row(bucket="decode:128"))
    verdict = Tables(tmp_path).look_up(at(size)).verdict
    assert verdict is (Verdict.INTERPOLATED if size == 64 else Verdict.MODELLED)


def test_leave_one_size_out(tmp_path: Path) -> None:
    """A constant plus a slope is found again within 5% from sizes 1.5 times apart."""
    sizes = (16, 24, 32, 48, 64, 96, 128)
    errors = []
    for left in sizes[1:-1]:
        truth = {n: 40.0 + 0.25 * n for n in sizes}
        rows = [
            row(bucket=f"decode:{n}", us=truth[n], us_p10=None, us_p90=None)
            for n in sizes
            if n != left
        ]
        write(tmp_path, *rows)
        found = Tables(tmp_path).look_up(at(left))
        assert found.verdict is Verdict.INTERPOLATED
        errors.append(abs(found.us / truth[left] - 1))
    assert max(errors) <= 0.05


def test_rows_left_out_are_found_again_from_their_neighbours(tmp_path: Path) -> None:
    truth = {1: 1.0, 8: 10.0, 16: 20.0, 32: 30.0, 64: 70.0}
    rows = [
        row_of(bucket=f"decode:{n}", us=us, us_p10=None, us_p90=None) for n, us in truth.items()
    ]
    found = left_out(rows)["linear"]
    # 16: a third of the way from 10 to 30; 32: a third from 20 to 70; 8 has no near neighbour.
    assert found.rows == 2 and found.where.startswith("decode:32")
    assert found.worst == pytest.approx(110 / 3 / 30 - 1, abs=1e-4)
    assert found.mean == pytest.approx((1 - 50 / 3 / 20 + 110 / 3 / 30 - 1) / 2, abs=1e-4)


def test_shipped_rows_are_interpolated_within_five_percent_on_average() -> None:
    rows = [r for path in tables_dir().glob("*/*/*.jsonl") for r in read_rows(path).rows]
    found = left_out(rows)
    assert {"attention_decode", "rows", "skinny"} <= set(found)
    assert {name: one.mean for name, one in found.items() if one.mean > 0.05} == {}


def test_stale_rows_answer_nothing_and_say_so(tmp_path: Path) -> None:
    write(tmp_path, row())
    found = Tables(tmp_path).look_up(KEY, lambda r: STALE)
    assert (found.verdict, found.choice) == (Verdict.STALE, {})
    assert "changed since it was measured" in found.reason
    # Fresh neighbours are better than a stale row; stale neighbours are not.
    write(tmp_path, row(), row(bucket="decode:4", us=5.0, us_p10=None), row(bucket="decode:16"))
    tables = Tables(tmp_path)
    assert tables.look_up(KEY, lambda r: STALE if r.bucket == "decode:8" else NO_DOUBT).verdict is (
        Verdict.INTERPOLATED
    )
    assert tables.look_up(KEY, lambda r: STALE).verdict is Verdict.STALE
    refused = Tables(tmp_path).look_up(KEY, lambda r: STALE, require_tuned=True)
    assert refused.verdict is Verdict.REFUSED


def test_an_illegal_tile_is_one_warning_and_the_rest_serves(tmp_path: Path) -> None:
    write(tmp_path, row(), row(variant="other"))
    tables = Tables(tmp_path)
    for _ in range(2):
        found = tables.look_up(KEY, lambda r: Doubt(True, "too much", "too much shared memory"))
        assert found.verdict is Verdict.MODELLED
    (problem,) = tables.problems
    assert f"{tmp_path}/sm_90/h200/linear.jsonl: line 1: a row at decode:8" in problem
    assert "outputs 2, tile_k 2048" in problem and "shared memory" in problem
    assert not tables.stale
    assert tables.look_up(replace(KEY, variant="other")).verdict is Verdict.EXACT


def test_a_row_that_is_broken_lends_its_time_to_nobody(tmp_path: Path) -> None:
    write(
        tmp_path,
        row(bucket="decode:4"),
        row(bucket="decode:12", us=0.1, us_p10=None),
        row(bucket="decode:16"),
    )
    broken = {"decode:12": Doubt(illegal="warps cannot be 0", broken="warps cannot be 0")}
    tables = Tables(tmp_path)
    found = tables.look_up(KEY, lambda r: broken.get(r.bucket, NO_DOUBT))
    assert (found.verdict, found.us) == (Verdict.INTERPOLATED, 8.9)
    (problem,) = tables.problems
    assert "line 2" in problem and "warps cannot be 0" in problem


def test_stale_rows_are_one_warning_a_device(tmp_path: Path) -> None:
    write(tmp_path, *(row(variant=f"v{i}") for i in range(30)))
    tables = Tables(tmp_path)
    for i in range(30):
        tables.look_up(replace(KEY, variant=f"v{i}"), lambda r: STALE)
    assert not tables.problems
    (warning,) = tables.warnings()
    assert "rows of sm_90:h200 are stale" in warning and "linear 30" in warning
    assert "kernelgen tune MODEL --target sm_90:h200" in warning


def inherit(root: Path, data: Any, device: str = "h100") -> None:
    path = root / "sm_90" / device / "INHERITS.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))


def test_a_sibling_answers_only_where_a_file_says_so(tmp_path: Path) -> None:
    write(tmp_path, row())
    key = replace(KEY, device="h100")
    assert Tables(tmp_path).look_up(key).verdict is Verdict.MODELLED
    inherit(tmp_path, {"schema": 1, "source": "h200", "why": "the same die"})
    found = Tables(tmp_path).look_up(key)
    assert (found.verdict, found.device) == (Verdict.INHERITED, "h200")
    assert found.choice == {"outputs": 2, "tile_k": 2048} and "the same die" in found.reason
    # What was inherited is not handed on.
    inherit(tmp_path, {"schema": 1, "source": "h100", "why": "a cousin"}, "h20")
    assert Tables(tmp_path).look_up(replace(KEY, device="h20")).verdict is Verdict.MODELLED
    # An own row comes first.
    write(tmp_path, row(device="h100", us=12.0, us_p90=None), place="sm_90/h100/linear")
    assert Tables(tmp_path).look_up(key).us == 12.0


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        [],
        {"schema": 2, "source": "h200", "why": "x"},
        {"schema": 1, "source": "h100", "why": "itself"},
        {"schema": 1, "source": "../h200", "why": "x"},
        {"schema": 1, "source": "h200", "why": ""},
    ],
    ids=str,
)
def test_damaged_declarations_are_one_line(tmp_path: Path, bad: Any) -> None:
    write(tmp_path, row())
    inherit(tmp_path, bad)
    tables = Tables(tmp_path)
    assert tables.look_up(replace(KEY, device="h100")).verdict is Verdict.MODELLED
    (problem,) = tables.problems
    assert "INHERITS.json" in problem and "\n" not in problem


@pytest.mark.row("B-15")
def test_rows_of_another_device_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, row(), row(device="h100"), row(sm="sm_100"), row())
    found = read_rows(path)
    assert [r.us for r in found.rows] == [8.9]
    text = "\n".join(found.problems)
    assert "line 2" in text and "sm_90/h100/linear" in text
    assert "line 3" in text and "line 4: repeats line 1" in text


def test_contradicting_rows_are_both_left_out(tmp_path: Path) -> None:
    other = row(bucket="decode:16")
    found = read_rows(write(tmp_path, row(), other, row(us=9.0)))
    assert [r.bucket for r in found.rows] == ["decode:16"]
    (problem,) = found.problems
    assert "line 3: contradicts line 1" in problem


BAD_ROWS = [
    "not json",
    "[]",
    json.dumps(row())[:-30],
    "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
    row(schema=1),
    row(schema=3),
    row(schema="2"),
    row(us=0),
    row(us=-1.0),
    row(us=9.5),  # above its own 90th percentile
    row(choice={"rows": "2"}),
    row(bucket="decode:0"),
    row(bucket="prefill:8"),
    row(variant=""),
    row(surprise=1),
    row(source="0"),
    row(date="yesterday"),
    row(date="2026-11-30 20:00"),
    row(error_share=1.2),
    row(share_of_ceiling=0),
    row(clocks={"sm_min": 2000, "sm_max": 1900, "memory_min": 1, "memory_max": 1}),
    row(l2="lukewarm"),
    row(backend="cuda"),
    {k: v for k, v in row().items() if k != "source"},
]


@pytest.mark.parametrize("bad", BAD_ROWS, ids=lambda bad: str(bad)[-60:])
def test_damaged_rows_are_one_line_each_and_the_rest_serves(
    tmp_path: Path, bad: dict[str, Any] | str
) -> None:
    found = read_rows(write(tmp_path, row(bucket="decode:4"), bad, row(bucket="decode:16")))
    assert [r.bucket for r in found.rows] == ["decode:4", "decode:16"]
    (problem,) = found.problems
    assert "linear.jsonl: line 2" in problem and "\n" not in problem


def test_a_future_version_says_upgrade(tmp_path: Path) -> None:
    (problem,) = read_rows(write(tmp_path, row(schema=3))).problems
    assert "schema 3 is newer than this kernelgen (2): upgrade it" in problem


def test_a_truncated_file_keeps_what_is_whole(tmp_path: Path) -> None:
    path = write(tmp_path, *(row(bucket=f"decode:{n}") for n in (1, 2, 4, 8)))
    whole = path.read_bytes()
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        found = read_rows(path)
        complete = whole[:cut].count(b"\n")
        assert len(found.rows) in (complete, complete + 1)  # a last line may lack its newline only
        assert len(found.problems) <= 1


@pytest.mark.parametrize("name", ["../x", "a/b", "", "H200", "x" * 65])
def test_keys_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(UsageError):
        tuning_key("sm_90", name, "linear", "v", "decode:1")
    with pytest.raises(UsageError):
        tuning_key("sm_90", "h200", name, "v", "decode:1")


def test_text_does_not_depend_on_the_order_and_is_read_back(tmp_path: Path) -> None:
    rows = [row_of(bucket=f"decode:{n}", variant=v) for n in (8, 128, 16) for v in "ba"]
    text = rows_to_text(rows)
    random.Random(7).shuffle(rows)
    assert rows_to_text(rows) == text
    read = read_rows(write_rows(tmp_path / "sm_90/h200/linear.jsonl", rows))
    assert rows_to_text(read.rows) == text and not read.problems
    assert [r.bucket for r in read.rows] == ["decode:8", "decode:16", "decode:128"] * 2


def test_a_folder_that_takes_no_file_is_one_line(tmp_path: Path) -> None:
    blocked = tmp_path / "sm_90"
    blocked.write_text("a file where a folder should be")
    with pytest.raises(UsageError) as caught:
        write_rows(blocked / "h200/linear.jsonl", [row_of()])
    assert "\n" not in str(caught.value) and str(blocked) in str(caught.value)


def test_merging_takes_the_newer_row_whatever_the_order() -> None:
    old, new = row_of(date="2026-11-30"), row_of(date="2026-11-30T20:00:00Z", us=9.0)
    other = row_of(bucket="decode:16")
    for a, b in (([old, other], [new]), ([new], [other, old])):
        merged = merge(a, b)
        assert merged.rows == (new, other) and not merged.conflicts


def test_equal_dates_are_a_conflict_and_the_slower_time_is_kept() -> None:
    a, b = row_of(us=9.0), row_of(us=8.9)
    for pair in (([a], [b]), ([b], [a])):
        merged = merge(*pair)
        assert merged.rows == (a,)
        (conflict,) = merged.conflicts
        assert "8.9 and 9 µs" in conflict and "decode:8" in conflict
    assert not merge([a], [a]).conflicts


def test_the_published_schema_is_the_row() -> None:
    schema = json.loads((tables_dir() / "SCHEMA.json").read_text())
    names = [field.name for field in fields(Row)]
    assert list(schema["properties"]) == names == schema["required"]
    assert schema["properties"]["schema"] == {"const": 2}


def test_shipped_rows_are_readable_and_have_a_provenance() -> None:
    told = (tables_dir() / "PROVENANCE.md").read_text()
    files = sorted(tables_dir().glob("*/*/*.jsonl"))
    assert files
    for path in files:
        reading = read_rows(path)
        assert not reading.problems
        assert rows_to_text(reading.rows) == path.read_text()
        for shipped in reading.rows:
            assert f"## {shipped.provenance}\n" in told


def test_a_look_up_takes_microseconds(tmp_path: Path) -> None:
    rows = [row(bucket=f"decode:{n}", variant=f"v{v}") for n in (8, 16, 32) for v in range(200)]
    write(tmp_path, *rows)
    tables = Tables(tmp_path)
    keys = [tuning_key("sm_90", "h200", "linear", f"v{v}", "decode:24") for v in range(200)]
    tables.look_up(keys[0])
    best = min(_timed(tables, keys) for _ in range(5))
    assert best <= 20e-6


def _timed(tables: Tables, keys: list[Any]) -> float:
    start = perf_counter()
    for key in keys:
        tables.look_up(key)
    return (perf_counter() - start) / len(keys)
