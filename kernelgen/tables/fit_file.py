"""Owns `FIT.json` beside a device's rows: the fit that plans use, and whether it is up to date."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kernelgen.core.decode import from_json
from kernelgen.core.errors import KernelgenError
from kernelgen.core.files import write_atomic
from kernelgen.core.jsonio import dumps_readable, load_file
from kernelgen.tables.file import read_rows, rows_to_text
from kernelgen.tables.fit import DeviceFit

FILE_NAME = "FIT.json"
_MAX_BYTES = 1 << 20


def fit_path(folder: Path, sm: str, device: str) -> Path:
    """Where the fit of a device lies."""
    return folder / sm / device / FILE_NAME


def read_fit(path: Path) -> tuple[DeviceFit | None, tuple[str, ...]]:
    """The fit, or None, with one line for what is wrong with the file."""
    if not path.is_file():
        return None, ()
    try:
        return from_json(DeviceFit, load_file(path, max_bytes=_MAX_BYTES), source=str(path)), ()
    except KernelgenError as error:
        return None, (" ".join(str(error).split()),)


def write_fit(path: Path, fit: DeviceFit) -> Path:
    """Replaces the file by one rename."""
    return write_atomic(path, dumps_readable(fit))


def tables_digest(folder: Path, sm: str, device: str) -> str:
    """What the rows of a device say, as a digest: it changes with any row, not with their order."""
    digest = hashlib.sha256()
    for path in sorted((folder / sm / device).glob("*.jsonl")):
        digest.update(f"{path.name}\n{rows_to_text(read_rows(path).rows)}".encode())
    return digest.hexdigest()
