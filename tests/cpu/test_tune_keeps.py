"""What `tune` writes replaces its own files only, and nothing that it cannot read is lost."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from table_rows import row, row_of, write

from kernelgen.core.errors import UsageError
from kernelgen.tune.bundle_file import refuse_other_content
from kernelgen.tune.journal import open_journal
from kernelgen.tune.rows import bring


def test_a_bundle_replaces_no_other_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    refuse_other_content(tmp_path / "folder")
    kept = tmp_path / "folder" / "precious"
    kept.write_text("mine")
    with pytest.raises(UsageError, match="no earlier bundle"):
        refuse_other_content(tmp_path / "folder")
    assert kept.read_text() == "mine"


def test_a_bundle_replaces_no_other_file(tmp_path: Path) -> None:
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("precious", "mine")
    text = tmp_path / "text"
    text.write_text("mine")
    for path in (other, text):
        with pytest.raises(UsageError, match="is in the way"):
            refuse_other_content(path)


@pytest.mark.parametrize(
    "content", [b'{"precious": 1}', b"PK\x03\x04 a bundle", b"text\n", b"{}\n"]
)
def test_a_file_that_is_no_journal_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="no journal"), open_journal(path, "0" * 64):
        pass
    assert path.read_bytes() == content


def test_a_journal_whose_first_line_was_torn_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"bundle":"00')
    with open_journal(path, "0" * 64) as journal:
        assert next(journal.of("begin"))["bundle"] == "0" * 64


@pytest.mark.parametrize("line", ["half a r", '{"schema": 99}'])
def test_a_merge_into_lines_that_it_cannot_read_is_refused(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, line, row())
    before = path.read_bytes()
    with pytest.raises(UsageError, match="would drop the rest"):
        bring([row_of(bucket="decode:16")], tmp_path)
    assert path.read_bytes() == before
