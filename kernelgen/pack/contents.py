"""Owns reading a build folder or a wheel back: files with digests, manifest and kernels."""

from __future__ import annotations

import base64
import csv
import hashlib
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelgen.core.digest import digest_bytes
from kernelgen.core.errors import ProblemList, UsageError, quote
from kernelgen.core.files import explain_os_errors, read_bounded
from kernelgen.core.jsonio import JsonValue, loads
from kernelgen.pack.bundle import MANIFEST, RUNTIME

MAX_FILE_BYTES = 1 << 30
MAX_TOTAL_BYTES = 4 << 30
MAX_FILES = 100_000


@dataclass(frozen=True)
class Contents:
    """All files of a build, paths relative to its manifest; `meta` is a wheel's dist-info."""

    source: str
    manifest: dict[str, JsonValue]
    files: dict[str, bytes]
    meta: dict[str, bytes]

    def digest(self, path: str) -> str:
        """SHA-256 of one file."""
        return digest_bytes(self.files[path])

    def json(self, path: str) -> JsonValue:
        """A JSON file of the build; `UsageError` when it is missing or no JSON."""
        if path not in self.files:
            raise UsageError(f"holds no {path}", where=self.source)
        return loads(self.files[path], source=f"{self.source}: {path}")


def read_contents(path: Path) -> Contents:
    """Reads a wheel (checking its RECORD) or a build folder; `UsageError` when it is neither."""
    if path.is_file():
        return _read_wheel(path)
    if (path / MANIFEST).is_file():
        files = {
            file.relative_to(path).as_posix(): read_bounded(file, MAX_FILE_BYTES)
            for file in sorted(path.rglob("*"))
            if file.is_file() and "__pycache__" not in file.parts
        }
        return _contents(str(path), files, {})
    what = f"holds no {MANIFEST}" if path.is_dir() else "does not exist"
    raise UsageError(what, where=str(path), allowed="a wheel or a build folder")


def _contents(source: str, files: dict[str, bytes], meta: dict[str, bytes]) -> Contents:
    manifest = loads(files[MANIFEST], source=f"{source}: {MANIFEST}")
    if not isinstance(manifest, dict):
        raise UsageError("must hold an object", where=f"{source}: {MANIFEST}")
    return Contents(source, manifest, files, meta)


def _read_wheel(path: Path) -> Contents:
    with explain_os_errors(path):
        try:
            with zipfile.ZipFile(path) as archive:
                members = dict(_members(archive, str(path)))
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):
            raise UsageError("is not a readable wheel", where=str(path)) from None
    _check_record(str(path), members)
    tops = [name.split("/")[0] for name in members if name.count("/") == 1]
    packages = [top for top in dict.fromkeys(tops) if f"{top}/{MANIFEST}" in members]
    if len(packages) != 1:
        raise UsageError(
            f"holds {len(packages)} packages with a {MANIFEST}", where=str(path), allowed="one"
        )
    package = packages[0] + "/"
    files = {n.removeprefix(package): d for n, d in members.items() if n.startswith(package)}
    meta = {n.split("/", 1)[1]: d for n, d in members.items() if ".dist-info/" in n}
    return _contents(str(path), files, meta)


def _members(archive: zipfile.ZipFile, source: str) -> Iterator[tuple[str, bytes]]:
    infos = [info for info in archive.infolist() if not info.is_dir()]
    total = sum(info.file_size for info in infos)
    if len(infos) > MAX_FILES or total > MAX_TOTAL_BYTES:
        raise UsageError(f"claims {len(infos)} files of {total} bytes", where=source)
    names = [info.filename for info in infos]
    if len(set(names)) != len(names):
        raise UsageError("holds a file twice", where=source)
    for info in infos:
        # The declared size bounds what is read, so a lying archive cannot unpack without end.
        with archive.open(info) as file:
            yield info.filename, file.read(info.file_size)


def _check_record(source: str, members: dict[str, bytes]) -> None:
    problems = ProblemList(source)
    record = next((name for name in members if name.endswith(".dist-info/RECORD")), "")
    if not record:
        raise UsageError("has no RECORD", where=source)
    listed: dict[str, str] = {}
    for row in csv.reader(members[record].decode("utf-8", "replace").splitlines()):
        if len(row) == 3:
            listed[row[0]] = row[1]
    for name, content in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        if name == record:
            continue
        if name not in listed:
            problems.add("is not in RECORD", where=quote(name))
        elif listed[name] != f"sha256={digest}":
            problems.add("differs from its digest in RECORD", where=quote(name))
    for name in listed.keys() - members.keys():
        problems.add("is in RECORD but missing", where=quote(name))
    problems.raise_if_any(hint="the wheel is damaged: build or fetch it again")


def own_files(contents: Contents) -> dict[str, bytes]:
    """The build's own files, without the vendored runtime and the generated entry points."""
    generated = (f"{RUNTIME}/", "__init__.py", "__main__.py")
    return {n: d for n, d in contents.files.items() if not n.startswith(generated)}
