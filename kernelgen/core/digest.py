"""Owns the one digest of the project: SHA-256 of bytes, of files and of canonical JSON."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kernelgen.core.jsonio import dumps

SHORT = 12  # characters shown to people; 48 bits tell any two artefacts of one machine apart


def digest_bytes(data: bytes | str) -> str:
    """Hexadecimal SHA-256 of `data`; text counts as UTF-8."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def digest_json(value: object) -> str:
    """Digest of the canonical JSON of `value` (JSON data, or frozen dataclasses of it)."""
    return digest_bytes(dumps(value))


def digest_file(path: Path) -> str:
    """Digest of a file's bytes, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_tree(folder: Path, pattern: str = "**/*") -> str:
    """Digest of names and contents of the files below `folder` that match `pattern`."""
    files = sorted(p for p in folder.glob(pattern) if p.is_file() and "__pycache__" not in p.parts)
    return digest_json({p.relative_to(folder).as_posix(): digest_file(p) for p in files})


def short(digest: str) -> str:
    """The first characters of a digest, for people."""
    return digest[:SHORT]
