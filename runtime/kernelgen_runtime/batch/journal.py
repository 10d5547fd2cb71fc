"""Owns the file of answers: each line written once and whole, and what an earlier run has left."""

import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from ..artifact.bounded_json import JsonTextError, parse_json
from ..errors import RequestError, shown
from .answer import Answer, answer_id

SYNC_SECONDS = 1.0


class Journal:
    """An open file of answers. `done` holds the custom id of each line that has its answer.

    A line that a killed run left unfinished is cut off. Answers survive the end of the process at
    once, and that of the machine within a second. Raises RequestError where the file cannot be
    written, is written by another run, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[int, str | None] = {}
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RequestError(f"{path}: cannot write it ({error.strerror})") from None
        try:
            self._lock()
            self._size = self._read()
            os.ftruncate(self._file, self._size)
        except BaseException:
            os.close(self._file)
            raise
        self._synced, self._is_dirty = time.monotonic(), False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_dirty:
            os.fsync(self._file)
        os.close(self._file)

    def write(self, answer: Answer) -> None:
        """Append one answer; whole, or (and RequestError) not at all."""
        text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        data = text.encode(errors="replace") + b"\n"
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
            self._size += written
            self._is_dirty = True
            if time.monotonic() - self._synced >= SYNC_SECONDS:
                os.fsync(self._file)
                self._synced, self._is_dirty = time.monotonic(), False
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise RequestError(f"{self.path}: cannot write it ({error.strerror})") from None

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RequestError(f"{self.path}: another run is writing it") from None

    def _read(self) -> int:
        """Fill `done`; return the bytes of whole lines."""
        size = 0
        with os.fdopen(os.dup(self._file), "rb") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n"):
                    break
                line, custom_id = self._answered(text, number)
                self.done[line] = custom_id
                size += len(text)
        return size

    def _answered(self, text: bytes, number: int) -> tuple[int, str | None]:
        try:
            value = parse_json(text)
        except JsonTextError:
            value = None
        if isinstance(value, dict) and {"custom_id", "response", "error"} <= value.keys():
            name, custom_id = value.get("id"), value["custom_id"]
            digits = name.rpartition("_")[2] if isinstance(name, str) else ""
            is_ours = digits.isascii() and digits.isdigit() and name == answer_id(int(digits))
            if is_ours and (custom_id is None or isinstance(custom_id, str)):
                return int(digits), custom_id
        raise RequestError(
            f"{self.path}: line {number} is no answer of a batch ({shown(text[:60])}); "
            "give another --output"
        )
