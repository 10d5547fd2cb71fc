"""Owns the artefact store: what was compiled once is found again by the digest of its inputs."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kernelgen.core.decode import from_json
from kernelgen.core.digest import digest_bytes, digest_file
from kernelgen.core.errors import KernelgenError
from kernelgen.core.files import explain_os_errors, file_lock, try_file_lock, write_tree
from kernelgen.core.jsonio import dumps, load_file

_LAYOUT = "v2"  # a new number abandons old entries instead of misreading them
_RECORD = "entry.json"


@dataclass(frozen=True)
class EntryFile:
    """One file of an entry as it was written: any other size or digest is damage."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Record:
    """What `entry.json` holds; `label` is for people ("kernels/step.cpp avx2")."""

    key: str
    label: str
    files: tuple[EntryFile, ...]


@dataclass(frozen=True)
class Entry:
    """A checked entry. Its files stay in place until the store's session ends."""

    folder: Path
    record: Record

    def path(self, name: str) -> Path:
        """Path of the file called `name`, which the entry was published with."""
        return self.folder / name


@dataclass(frozen=True)
class StoreInfo:
    """Size of a store: `entries` published ones, `bytes` of everything below `root`."""

    root: str
    entries: int
    bytes: int
    oldest_use_s: float


def default_root() -> Path:
    """`$KERNELGEN_CACHE`, else `kernelgen` in the user's cache folder."""
    if chosen := os.environ.get("KERNELGEN_CACHE"):
        return Path(chosen).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative value is to be ignored.
    folder = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
    return folder / "kernelgen"


class Store:
    """Entries at `<root>/v2/<2 hex>/<key>/`, published by one rename and checked at each use.

    Any number of builds may use a store at once: each holds a shared lock (`session`), only
    `clean` needs the exclusive one. A build killed at any point leaves at most a stage folder,
    which the next session that finds itself alone removes.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else default_root()
        self._entries = self.root / _LAYOUT
        self._stages = self.root / "tmp"
        self._failed = self.root / "failed"
        self._lock = self.root / "lock"

    @contextmanager
    def session(self) -> Iterator[None]:
        """Keeps `clean` away while entries are used; every `get` and `put` belongs inside."""
        with try_file_lock(self._lock) as alone:
            if alone:
                shutil.rmtree(self._stages, ignore_errors=True)
        with file_lock(self._lock, shared=True):
            yield

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """A scratch folder on the store's file system, gone afterwards."""
        with explain_os_errors(self._stages):
            self._stages.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=self._stages))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def get(self, key: str) -> Entry | None:
        """The entry of `key`, or None; a damaged one is removed and counts as absent."""
        folder = self._folder(key)
        if not folder.is_dir():
            return None
        record = _checked(folder, key)
        if record is None:
            # Looked at again under a lock: another build may have replaced it with a good one.
            with file_lock(self.root / "repair.lock"):
                record = _checked(folder, key)
                if record is None:
                    self._discard(folder)
                    return None
        with suppress(OSError):  # the time of last use, for `clean`; a read-only store is fine
            os.utime(folder / _RECORD)
        return Entry(folder, record)

    def put(self, key: str, files: Mapping[str, bytes | Path], *, label: str) -> Entry:
        """Publishes `files` (name → content, or a file to copy) as the entry of `key`.

        Where another build was faster its entry is kept: equal keys mean equal content.
        """
        folder = self._folder(key)
        with explain_os_errors(folder), self.stage() as stage:
            fresh = stage / "entry"
            fresh.mkdir()
            record = Record(key, label, tuple(_write(fresh, n, c) for n, c in files.items()))
            (fresh / _RECORD).write_text(dumps(record))
            folder.parent.mkdir(parents=True, exist_ok=True)
            if (present := self.get(key)) is not None:
                return present
            try:
                fresh.rename(folder)
            except OSError:
                if (present := self.get(key)) is None:
                    raise
                return present
        return Entry(folder, record)

    def keep_failed(self, key: str, files: Mapping[str, str]) -> Path:
        """Keeps the inputs of a failed compilation for people to read; returns their folder."""
        folder = self._failed / key[:16]
        write_tree(folder, files)
        return folder

    def info(self) -> StoreInfo:
        """Counts entries and bytes; an absent store is empty."""
        folders = self._folders()
        total = 0
        for base, _, names in os.walk(self.root):
            for name in names:
                with suppress(OSError):
                    total += os.lstat(os.path.join(base, name)).st_size
        ages = [age for age in map(_age_s, folders) if math.isfinite(age)]
        return StoreInfo(str(self.root), len(folders), total, max(ages, default=0.0))

    def clean(self, *, max_age_s: float | None = None) -> StoreInfo:
        """Removes entries unused for `max_age_s` seconds (all when None), stages and failures.

        Waits for running builds. Returns what was removed.
        """
        if not self.root.is_dir():
            return StoreInfo(str(self.root), 0, 0, 0.0)
        with file_lock(self._lock):
            before = self.info()
            for folder in self._folders():
                if max_age_s is None or _age_s(folder) > max_age_s:
                    self._discard(folder)
            for folder in (self._stages, self._failed):
                shutil.rmtree(folder, ignore_errors=True)
            after = self.info()
        return StoreInfo(
            before.root,
            before.entries - after.entries,
            before.bytes - after.bytes,
            before.oldest_use_s,
        )

    def _folder(self, key: str) -> Path:
        return self._entries / key[:2] / key

    def _folders(self) -> list[Path]:
        return sorted(path for path in self._entries.glob("??/*") if path.is_dir())

    def _discard(self, folder: Path) -> None:
        # Moved away first: nobody may meet an entry that is half removed.
        with explain_os_errors(folder), self.stage() as stage, suppress(FileNotFoundError):
            folder.rename(stage / "old")


def _write(folder: Path, name: str, content: bytes | Path) -> EntryFile:
    path = folder / name
    if isinstance(content, Path):
        shutil.copyfile(content, path)
        return EntryFile(name, path.stat().st_size, digest_file(path))
    path.write_bytes(content)
    return EntryFile(name, len(content), digest_bytes(content))


def _checked(folder: Path, key: str) -> Record | None:
    try:
        path = folder / _RECORD
        record = from_json(Record, load_file(path, max_bytes=1 << 20), source=str(path))
        whole = record.key == key and all(
            (folder / file.name).stat().st_size == file.bytes
            and digest_file(folder / file.name) == file.sha256
            for file in record.files
        )
    except (KernelgenError, OSError):
        return None
    return record if whole else None


def _age_s(folder: Path) -> float:
    try:
        return max(0.0, time.time() - (folder / _RECORD).stat().st_mtime)
    except OSError:
        return math.inf  # no record: damaged, so older than any limit
