"""Owns the compiler's exception classes, their exit codes, and the collector of many problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NoReturn, Self


class KernelgenError(Exception):
    """Anything a user, a file or the machine caused; printed as one line, never as a traceback.

    `template` is what one cause always says: a subclass fixes it and callers fill it with `of()`.
    `where` names the file, field or tensor; `allowed` what would have been right; `hint` the next
    command or step. Only `str(error)` is meant for people.
    """

    exit_code: ClassVar[int] = 1
    template: ClassVar[str] = "{message}"

    def __init__(self, message: str, *, where: str = "", allowed: str = "", hint: str = "") -> None:
        super().__init__(message)  # args stay (message,), so that errors survive a child process
        self.message = message
        self.where = where
        self.allowed = allowed
        self.hint = hint

    @classmethod
    def of(cls, *, where: str = "", allowed: str = "", hint: str = "", **fields: object) -> Self:
        """The error with its template filled in; `fields` are the template's names."""
        text = cls.template.format(**fields)
        return cls(text, where=where, allowed=allowed, hint=hint)

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        if self.allowed:
            text += f" (allowed: {self.allowed})"
        if self.hint:
            text += f"; {self.hint}"
        return text


class CheckFailed(KernelgenError):
    """A comparison, a bound or `--require-tuned` did not hold."""

    exit_code = 1


class UsageError(KernelgenError):
    """Wrong arguments, or a file that does not hold what it must."""

    exit_code = 2


class UnsupportedError(KernelgenError):
    """A model, format, compiler or hardware feature that kernelgen does not cover."""

    exit_code = 3


class NoDeviceError(KernelgenError):
    """The command needs a device that this machine lacks."""

    exit_code = 4


class Interrupted(KernelgenError):
    """Stopped half-way with everything finished so far kept: the same command resumes."""

    exit_code = 5


class DiskFull(Interrupted):
    """No space left while writing; nothing half-written stays behind."""

    template = "no space left on device while writing {path}"


def quote(value: object, limit: int = 80) -> str:
    """`repr(value)` cut to `limit` characters: the only way hostile text gets into a message."""
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


class ProblemList:
    """Collects all problems of one kind, to be raised once as a bounded text.

    `subject` opens the message ("config.json"); `error` is the class raised; at most `limit`
    problems are spelled out and the rest counted.
    """

    def __init__(
        self, subject: str, error: type[KernelgenError] = UsageError, *, limit: int = 20
    ) -> None:
        self.subject = subject
        self.error = error
        self.limit = limit
        self._problems: list[str] = []

    def add(self, message: str, *, where: str = "", allowed: str = "") -> None:
        """Notes one problem; repeats of the same text count once."""
        text = str(KernelgenError(message, where=where, allowed=allowed))
        if text not in self._problems:
            self._problems.append(text)

    def extend(self, other: ProblemList) -> None:
        """Takes over the problems of another list."""
        for text in other:
            self.add(text)

    def raise_if_any(self, *, hint: str = "") -> None:
        """Raises `error` with every problem, or does nothing when there are none."""
        if self._problems:
            self._raise(hint)

    def _raise(self, hint: str) -> NoReturn:
        count = len(self._problems)
        if count == 1:
            raise self.error(self._problems[0], where=self.subject, hint=hint)
        lines = [f"  - {text}" for text in self._problems[: self.limit]]
        if count > self.limit:
            lines.append(f"  … and {count - self.limit} more")
        raise self.error("\n".join([f"{count} problems", *lines]), where=self.subject, hint=hint)

    def __len__(self) -> int:
        return len(self._problems)

    def __iter__(self) -> Iterator[str]:
        return iter(self._problems)
