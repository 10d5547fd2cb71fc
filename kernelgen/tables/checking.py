"""Owns the check of a whole folder of tables: everything that a reader would leave out or doubt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelgen.core.errors import UsageError
from kernelgen.hw import devices
from kernelgen.tables.file import read_rows
from kernelgen.tables.fit_file import fit_path, read_fit, tables_digest
from kernelgen.tables.inherits import read_inheritance
from kernelgen.tables.row import Row

PROVENANCE = "PROVENANCE.md"
LAYOUT = "<sm>/<device>/<family>.jsonl below it"


@dataclass(frozen=True)
class Checked:
    """What was looked at, and one line for each problem."""

    files: int
    rows: tuple[Row, ...]
    problems: tuple[str, ...]


def device_folders(folder: Path) -> tuple[tuple[str, str], ...]:
    """(SM, device) of every folder of rows below `folder`; `UsageError` where it is none itself."""
    if not folder.is_dir():
        raise UsageError("no such folder", where=str(folder))
    found = (path for path in folder.glob("*/*") if path.is_dir() and path.name[0] != ".")
    return tuple(sorted((path.parent.name, path.name) for path in found))


def check_folder(folder: Path) -> Checked:
    """Reads every file below a folder of tables; raises only where there is no such folder."""
    files, rows, problems = 0, list[Row](), list[str]()
    for sm, device in device_folders(folder):
        for path in sorted((folder / sm / device).glob("*.jsonl")):
            reading = read_rows(path)
            files += 1
            rows += reading.rows
            problems += reading.problems
        problems += _beside(folder, sm, device)
    problems += _untold(folder, rows)
    return Checked(files, tuple(rows), tuple(problems))


def _beside(folder: Path, sm: str, device: str) -> Iterator[str]:
    """What is wrong with a device's name, its fit and what it inherits."""
    place = folder / sm / device
    known = [d.name for d in devices() if d.sm_name == sm]
    if device not in known:
        yield f"{place}: no device of {sm} that we know (allowed: {', '.join(known) or 'none'})"
    fit, wrong = read_fit(fit_path(folder, sm, device))
    yield from wrong
    if fit is not None and fit.tables != tables_digest(folder, sm, device):
        yield (
            f"{fit_path(folder, sm, device)}: was made for other rows; `kernelgen tables fit` makes"
            " it again"
        )
    inherited, wrong = read_inheritance(folder, sm, device)
    yield from wrong
    if inherited is not None and not (folder / sm / inherited.source).is_dir():
        yield f"{place}: inherits from {inherited.source}, which has no rows"


def _untold(folder: Path, rows: list[Row]) -> Iterator[str]:
    """Sweeps that rows name and that nobody has described."""
    for name in sorted({row.provenance for row in rows} - described(folder)):
        yield f"{folder / PROVENANCE}: has no section ## {name}, which rows name as their sweep"


def described(folder: Path) -> frozenset[str]:
    """Names of the sweeps that have a section in PROVENANCE.md."""
    path = folder / PROVENANCE
    text = path.read_text(errors="replace") if path.is_file() else ""
    lines = (line for line in text.splitlines() if line[:3] == "## ")
    return frozenset(line.removeprefix("## ").strip() for line in lines)
