"""Proves the tuning tables: one key, strict rows, honest verdicts."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from kernelgen.core.errors import UsageError
from kernelgen.core.resources import tables_dir
from kernelgen.tables import Row, Tables, Verdict, tuning_key
from kernelgen.tables.row import read_rows

KEY = tuning_key("sm_90", "h200", "linear", "bf16 n=4096 k=4096", "decode:8")


def row(**changes: Any) -> dict[str, Any]:
    good = {
        "schema": 1,
        "sm": "sm_90",
        "device": "h200",
        "family": "linear",
        "variant": "bf16 n=4096 k=4096",
        "bucket": "decode:8",
        "backend": "triton",
        "choice": {"rows": 2, "tile_k": 2048},
        "us": 8.9,
        "bytes": 33554432,
        "flops": 268435456,
        "samples": 50,
        "source": "0" * 64,
        "provenance": "made up for a test",
    }
    return good | changes


def write(root: Path, *rows: dict[str, Any] | str, place: str = "sm_90/h200/linear") -> Path:
    path = root / f"{place}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
    return path


@pytest.mark.row("B-15")
def test_a_row_answers_its_own_key_only(tmp_path: Path) -> None:
    write(tmp_path, row())
    tables = Tables(tmp_path)
    found = tables.look_up(KEY)
    assert found.verdict is Verdict.EXACT
    assert found.row is not None and found.row.choice == {"rows": 2, "tile_k": 2048}
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


@pytest.mark.row("B-15")
def test_rows_of_another_device_are_not_merged(tmp_path: Path) -> None:
    path = write(tmp_path, row(), row(device="h100"), row(sm="sm_100"), row())
    with pytest.raises(UsageError) as caught:
        read_rows(path)
    text = str(caught.value)
    assert "line 2" in text and "sm_90/h100/linear" in text
    assert "line 3" in text and "line 4: repeats the key" in text


@pytest.mark.parametrize(
    "bad",
    [
        "not json",
        "[]",
        row(schema=2),
        row(us=0),
        row(us=-1.0),
        row(choice={"rows": "2"}),
        row(bucket="decode:0"),
        row(bucket="prefill:8"),
        row(variant=""),
        row(surprise=1),
        {k: v for k, v in row().items() if k != "source"},
    ],
    ids=str,
)
def test_damaged_rows_name_their_line(tmp_path: Path, bad: dict[str, Any] | str) -> None:
    with pytest.raises(UsageError, match="line 1"):
        read_rows(write(tmp_path, bad))


@pytest.mark.parametrize("name", ["../x", "a/b", "", "H200", "x" * 65])
def test_keys_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(UsageError):
        tuning_key("sm_90", name, "linear", "v", "decode:1")
    with pytest.raises(UsageError):
        tuning_key("sm_90", "h200", name, "v", "decode:1")


def test_the_published_schema_is_the_row() -> None:
    schema = json.loads((tables_dir() / "SCHEMA.json").read_text())
    names = [field.name for field in fields(Row)]
    assert list(schema["properties"]) == names == schema["required"]


def test_shipped_rows_are_readable_and_have_a_provenance() -> None:
    told = (tables_dir() / "PROVENANCE.md").read_text()
    for path in tables_dir().glob("*/*/*.jsonl"):
        for shipped in read_rows(path):
            assert f"## {shipped.provenance}\n" in told
