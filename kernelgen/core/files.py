"""Owns writing: files and folders appear whole or not at all; locks keep two processes apart."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kernelgen.core.errors import DiskFull, UsageError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def explain_os_errors(path: Path) -> Iterator[None]:
    """Turns an `OSError` of the body into one line that names `path`: full disk, no right, …"""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(path) from error
        reason = error.strerror or str(error)
        if error.filename is not None and str(error.filename) != str(path):
            reason += f" ({error.filename})"  # often a folder above, which is what to repair
        raise UsageError(f"cannot be used: {reason}", where=str(path)) from error


def write_atomic(path: Path, data: bytes | str, *, mode: int = 0o644) -> Path:
    """Writes a file by temporary name, fsync and rename; makes its folder; returns `path`.

    A reader sees the old content or the new, never a part. `DiskFull` when there is no space,
    `UsageError` for any other refusal of the file system.
    """
    raw = data.encode() if isinstance(data, str) else data
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(raw)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    return path


def refuse_unwritable(path: Path) -> None:
    """`UsageError` where a file could not be written at `path` later on, told before the work whose
    result it is for; leaves nothing behind.
    """
    with explain_os_errors(path):
        if path.is_dir():
            raise UsageError("is a folder", where=str(path), allowed="a file")
        above = path.absolute().parent
        while not above.exists():
            above = above.parent
        # Rights, mounts and quotas all have a say: only a file that was made proves that one can.
        handle, probe = tempfile.mkstemp(prefix=".kernelgen.", dir=above)
        os.close(handle)
        os.unlink(probe)


def write_tree(folder: Path, files: Mapping[str, bytes | str]) -> None:
    """Writes relative path → content below `folder`, plainly: for folders not yet published."""
    with explain_os_errors(folder):
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Bytes of a file that must not be longer than `max_bytes`; `UsageError` otherwise."""
    with explain_os_errors(path), path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UsageError(f"is longer than {max_bytes} bytes", where=str(path))
    return data


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of `path` when the body ends without error.

    On any error the old `path` is as it was and the half-filled folder is gone.
    """
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{path.name[:40]}.", dir=path.parent))
    fresh, old = stage / "new", stage / "old"
    try:
        fresh.mkdir()
        with _explain_full_disk(path):
            yield fresh
        with explain_os_errors(path):
            _exchange(fresh, path, old)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _exchange(fresh: Path, path: Path, old: Path) -> None:
    if path.is_symlink() or path.exists():
        path.rename(old)
    try:
        fresh.rename(path)
    except OSError:
        if old.is_symlink() or old.exists():
            old.rename(path)
        raise


@contextmanager
def _explain_full_disk(path: Path) -> Iterator[None]:
    # Other errors of a caller's own body are not about `path`, so they pass as they are.
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise disk_full(path) from error


def disk_full(path: Path) -> DiskFull:
    """The error to raise where a tool reported a full disk while writing below `path`."""
    return DiskFull.of(path=path, hint="free some space and repeat the command: it resumes")


@contextmanager
def file_lock(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Holds `flock` on `path` (made when missing) during the body; the kernel frees it on exit.

    Waits without limit: whoever holds it is alive, since a dead process holds nothing.
    """
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with explain_os_errors(path):
            fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def try_file_lock(path: Path) -> Iterator[bool]:
    """Tries for the exclusive lock without waiting; yields whether it is held."""
    with explain_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            held = False
        yield held
    finally:
        os.close(handle)
