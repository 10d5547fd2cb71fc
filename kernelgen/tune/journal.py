"""Owns the journal of a sweep: lines that are only ever added, read again after any end."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from kernelgen.core.errors import UsageError, quote
from kernelgen.core.files import explain_os_errors
from kernelgen.core.jsonio import dumps

SCHEMA = 1
_MAX_BYTES = 1 << 30
_NAMES = {
    "group": ("group",),
    "coarse": ("group", "candidate"),
    "fine": ("group", "candidate"),
    "quiet": ("group", "code", "device", "driver"),
    "decided": ("step", "group", "candidate", "code", "flag"),
}
"""kind of a line → fields that say what it is about"""
_MAX_BEGIN_BYTES = 1 << 16
_FIRST_BYTES = b'{"bundle":'
"""of every journal: keys of a line are sorted"""


@dataclass
class Notes:
    """What a sweep has seen so far, in memory only."""

    lines: list[Mapping[str, Any]]
    _about: dict[tuple[Any, ...], list[Mapping[str, Any]]] = field(
        default_factory=dict, repr=False, kw_only=True
    )

    def __post_init__(self) -> None:
        for line in self.lines:
            self._index(line)

    def add(self, kind: str, /, *, durable: bool = False, **fields: Any) -> None:
        """One line more; `durable` waits for the disk where there is one."""
        line = {"kind": kind, **fields}
        self.lines.append(line)
        self._index(line)

    def about(self, kind: str, group: str, candidate: str) -> Sequence[Mapping[str, Any]]:
        """Lines of a kind about one candidate, oldest first."""
        return self._about.get((kind, group, candidate), ())

    def _index(self, line: Mapping[str, Any]) -> None:
        key = (line["kind"], line.get("group"), line.get("candidate"))
        self._about.setdefault(key, []).append(line)

    def of(self, kind: str, **fields: Any) -> Iterator[Mapping[str, Any]]:
        """Lines of a kind whose fields have these values, oldest first."""
        for line in self.lines:
            if line["kind"] == kind and all(line.get(k) == v for k, v in fields.items()):
                yield line


@dataclass
class Journal(Notes):
    """An open journal: what earlier runs wrote, and a place for more.

    Every line reaches the operating system at once, and the disk with the end of its group.
    """

    path: Path
    problems: tuple[str, ...]
    _file: TextIO = field(repr=False)

    def add(self, kind: str, /, *, durable: bool = False, **fields: Any) -> None:
        """One line more, in the file first."""
        with explain_os_errors(self.path):
            self._file.write(dumps({"kind": kind, **fields}) + "\n")
            self._file.flush()
            if durable:
                os.fsync(self._file.fileno())
        super().add(kind, durable=durable, **fields)


@contextmanager
def open_journal(path: Path, bundle: str, **begin: Any) -> Iterator[Journal]:
    """The journal at `path`, made if there is none, for the bundle with that digest.

    A line that was not finished is cut off. `UsageError` where another sweep writes into it now, or
    it belongs to another bundle.
    """
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                "another sweep writes into it", where=str(path), hint="choose another --journal"
            ) from error
        if not _is_journal(path):
            raise UsageError(
                "is no journal of a sweep", where=str(path), hint="choose another file"
            )
        lines, problems = _recovered(path)
        journal = Journal(lines, path, problems, file)
        first = next(journal.of("begin"), None)
        if first is None:
            journal.add("begin", durable=True, schema=SCHEMA, bundle=bundle, **begin)
        _refuse_schema(journal.of("begin"), path)
        if first is not None and first.get("bundle") != bundle:
            raise UsageError(
                f"belongs to another bundle ({str(first.get('bundle'))[:12]}, not {bundle[:12]})",
                where=str(path),
                hint="choose another --journal, or measure the bundle that it was begun with",
            )
        yield journal


def _is_journal(path: Path) -> bool:
    """Whether a file is empty or begins like a journal; only then may anything in it be cut off."""
    with path.open("rb") as file:
        head = file.read(_MAX_BEGIN_BYTES)
    line, ended, _ = head.partition(b"\n")
    if not ended:  # a first line that was never finished
        return _FIRST_BYTES.startswith(line) or line.startswith(_FIRST_BYTES)
    begin = _parsed(line + b"\n", path)[0]
    return bool(begin) and begin[0].get("kind") == "begin"


def finished(journal: Notes) -> dict[str, str]:
    """Groups that need not be measured again, each with the digest of its code: the last word on
    them is not that they were disturbed.
    """
    last = {line["group"]: line for line in journal.of("group")}
    return {name: str(line.get("code", "")) for name, line in last.items() if not line.get("flag")}


def read_journal(path: Path) -> tuple[list[Mapping[str, Any]], tuple[str, ...]]:
    """All whole lines, and one line of text for each that is none; changes nothing.

    `UsageError` for a file that is no journal, or one of another schema: what its lines mean there
    is not known here.
    """
    with explain_os_errors(path):
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise UsageError(f"is longer than {_MAX_BYTES} bytes", where=str(path))
        data = path.read_bytes()
    lines, problems = _parsed(data[: data.rfind(b"\n") + 1], path)
    begins = [line for line in lines if line["kind"] == "begin"]
    if not begins:
        raise UsageError(
            "is no journal of a sweep", where=str(path), hint="`kernelgen tune` writes them"
        )
    _refuse_schema(begins, path)
    return lines, problems


def _refuse_schema(begins: Iterable[Mapping[str, Any]], path: Path) -> None:
    """`UsageError` where a run was written by a kernelgen that means other things by its lines."""
    for line in begins:
        schema = line.get("schema")
        if type(schema) is int and schema > SCHEMA:
            told = f"schema {schema} is newer than this kernelgen ({SCHEMA})"
            raise UsageError(told, where=str(path), hint="upgrade it")
        if schema != SCHEMA:
            raise UsageError(f"schema {quote(schema)}", where=str(path), allowed=str(SCHEMA))


def _recovered(path: Path) -> tuple[list[Mapping[str, Any]], tuple[str, ...]]:
    """As `read_journal`; what follows the last whole line is cut off."""
    with explain_os_errors(path):
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
    return _parsed(data[:whole], path)


def _parsed(data: bytes, path: Path) -> tuple[list[Mapping[str, Any]], tuple[str, ...]]:
    lines: list[Mapping[str, Any]] = []
    problems: list[str] = []
    for number, text in enumerate(data.splitlines(), 1):
        try:
            line = json.loads(text)
            if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
                raise ValueError("no line of a journal")
            if line["kind"] in _NAMES and not all(
                isinstance(line.get(name), str) for name in _NAMES[line["kind"]]
            ):
                raise ValueError(f"a line of kind {line['kind']} that names no kernel")
            lines.append(line)
        except ValueError as error:
            problems.append(f"{path}: line {number}: {error}")
    return lines, tuple(problems)
