"""Owns bundles as files: one zip (or one folder) of `bundle.json` and machine code by digest."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from kernelgen.core.decode import from_json
from kernelgen.core.digest import digest_bytes
from kernelgen.core.errors import UsageError
from kernelgen.core.files import explain_os_errors, staged_folder, write_atomic, write_tree
from kernelgen.core.jsonio import dumps, loads
from kernelgen.tune.bundle import SCHEMA, Bundle

CONTENT = "bundle.json"
_MAX_JSON = 256 << 20
_MAX_CODE = 64 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)


def refuse_other_content(path: Path) -> None:
    """A bundle replaces an earlier bundle or an empty folder, nothing else: raises UsageError."""
    with explain_os_errors(path):
        if not path.exists():
            return
        if path.is_dir():
            mine = path.suffix != ".zip" and ((path / CONTENT).is_file() or not any(path.iterdir()))
        elif mine := path.suffix == ".zip" and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                mine = CONTENT in archive.namelist()
    if not mine:
        raise UsageError(
            "is in the way: it is no earlier bundle, and a bundle would replace it",
            where=str(path),
            hint="choose another --emit",
        )


def write_bundle(path: Path, bundle: Bundle, codes: Mapping[str, bytes]) -> int:
    """Writes the bundle and the code that it names; returns its bytes.

    A path ending in `.zip` becomes one compressed file, any other a folder. Equal bundles give
    equal files. Raises KeyError for code that is missing, UsageError where something else is there.
    """
    refuse_other_content(path)
    files = {CONTENT: dumps(bundle).encode()}
    files |= {_place(code): codes[code] for code in sorted(bundle.codes)}
    if path.suffix != ".zip":
        with staged_folder(path) as stage:
            write_tree(stage, files)
        return sum(map(len, files.values()))
    write_atomic(path, _zipped(files))
    return path.stat().st_size


def _zipped(files: Mapping[str, bytes]) -> bytes:
    import io

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


class BundleFile:
    """An open bundle: its content, and machine code on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive: zipfile.ZipFile | None = None
        with explain_os_errors(path):
            if not path.is_dir():
                try:
                    self._archive = zipfile.ZipFile(path)
                except zipfile.BadZipFile as error:
                    raise UsageError(f"is no bundle: {error}", where=str(path)) from error
        self.bundle = self._content()

    def code(self, digest: str) -> bytes:
        """Machine code; `UsageError` where it is missing or was altered."""
        data = self._read(_place(digest), _MAX_CODE)
        if digest_bytes(data) != digest:
            raise UsageError(f"{_place(digest)} was altered", where=str(self.path))
        return data

    def _content(self) -> Bundle:
        source = f"{self.path}/{CONTENT}"
        data = loads(self._read(CONTENT, _MAX_JSON), source=source, max_bytes=_MAX_JSON)
        found = data.get("schema") if isinstance(data, dict) else None
        if found != SCHEMA:
            raise UsageError(
                f"schema {found!r} of a bundle",
                where=source,
                allowed=str(SCHEMA),
                hint="emit again",
            )
        return from_json(Bundle, data, source=source)

    def _read(self, name: str, limit: int) -> bytes:
        with explain_os_errors(self.path):
            if self._archive is None:
                place = self.path / name
                size = place.stat().st_size
            else:
                try:
                    size = self._archive.getinfo(name).file_size
                except KeyError:
                    raise UsageError(f"has no {name}", where=str(self.path)) from None
            if size > limit:
                raise UsageError(f"{name} is longer than {limit} bytes", where=str(self.path))
            if self._archive is None:
                return place.read_bytes()
            try:
                return self._archive.read(name)
            except zipfile.BadZipFile as error:
                raise UsageError(f"{name} is damaged: {error}", where=str(self.path)) from error


def _place(digest: str) -> str:
    return f"code/{digest}.cubin"
