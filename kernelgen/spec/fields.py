"""Owns the field reader: a call a field says type, range and default; problems are collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Self, TypeVar

from kernelgen.core.errors import ProblemList, UnsupportedError, UsageError, quote
from kernelgen.core.jsonio import json_kind
from kernelgen.spec.config import ConfigFile

T = TypeVar("T")


class Absent(Enum):
    """What a field without default does when it is absent."""

    REQUIRED = "required"


class Fields:
    """A typed look at one JSON object.

    Every reader notes what is wrong and returns a stand-in within the allowed range, so that one
    run finds all problems; `finish` raises them together. A field that was read counts as used.
    """

    def __init__(
        self, data: Mapping[str, Any], wrong: ProblemList, unsupported: ProblemList, path: str = ""
    ) -> None:
        self.wrong = wrong
        self.unsupported = unsupported
        self._data = data
        self._path = path
        self._used: set[str] = set()
        self._failed: set[str] = set()

    @classmethod
    def of(cls, config: ConfigFile) -> Self:
        """The fields of a whole config."""
        wrong = ProblemList(config.source, UsageError)
        return cls(config.data, wrong, ProblemList(config.source, UnsupportedError))

    def section(self, name: str) -> Fields | None:
        """The object called `name`, its problems noted here; None unless it is one."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.note_wrong(name, value, "an object")
            return None
        return Fields(value, self.wrong, self.unsupported, f"{self._path}{name}.")

    def __contains__(self, name: str) -> bool:
        return self._data.get(name) is not None

    def absent(self, name: str) -> bool:
        """Whether the object has no such key at all; null is not absent."""
        return name not in self._data

    def raw(self, name: str) -> Any:
        """The unchecked value (None when absent); the field counts as used."""
        self._used.add(name)
        return self._data.get(name)

    def pass_over(self, *names: str) -> None:
        """Counts fields as used that say nothing of the model."""
        self._used.update(names)

    def sound(self, *names: str) -> bool:
        """Whether none of these fields was wrong: only then does a relation between them count."""
        return self._failed.isdisjoint(names)

    @property
    def used(self) -> frozenset[str]:
        """Names that a reader has asked for."""
        return frozenset(self._used)

    def unused(self) -> dict[str, Any]:
        """What no reader has asked for."""
        return {k: v for k, v in self._data.items() if k not in self._used}

    def integer(
        self,
        name: str,
        low: int,
        high: int,
        default: int | Absent = Absent.REQUIRED,
        *,
        nullable: bool = False,
    ) -> int:
        """An integer from `low` to `high`; `nullable`: null stands for the default."""
        allowed = f"an integer from {low} to {high}"

        def fits(v: Any) -> bool:
            return type(v) is int and low <= v <= high

        return self._read(name, default, nullable, fits, allowed, low)

    def number(
        self,
        name: str,
        low: float,
        high: float,
        default: float | Absent = Absent.REQUIRED,
        *,
        nullable: bool = False,
    ) -> float:
        """A number from `low` to `high`, integers included."""
        allowed = f"a number from {low:g} to {high:g}"
        return float(
            self._read(name, default, nullable, lambda v: _number_fits(v, low, high), allowed, low)
        )

    def flag(self, name: str, default: bool | Absent = Absent.REQUIRED) -> bool:
        """True or false."""
        return self._read(name, default, False, lambda v: type(v) is bool, "true or false", False)

    def choice(
        self, name: str, choices: Mapping[str, T], default: T | Absent = Absent.REQUIRED
    ) -> T:
        """What a string of `choices` stands for; another string is something we do not support."""
        value = self.raw(name)
        first = next(iter(choices.values()))
        if value is None and name not in self._data and not isinstance(default, Absent):
            return default
        if isinstance(value, str) and value not in choices:
            self.unsupported.add(
                f"is {quote(value)}", where=self._path + name, allowed=", ".join(choices)
            )
            return first
        if not isinstance(value, str):
            self.note_wrong(name, value, "one of " + ", ".join(choices))
            return first
        return choices[value]

    def require(self, condition: bool, name: str, message: str, allowed: str = "") -> None:
        """Notes a problem of `name` unless `condition` holds."""
        if not condition:
            self._failed.add(name)
            self.wrong.add(message, where=self._path + name, allowed=allowed)

    def note_wrong(self, name: str, value: Any, allowed: str) -> None:
        """Notes that `name` is missing, or holds a value that is not allowed."""
        self._failed.add(name)
        missing = value is None and self.absent(name)
        shown = json_kind(value) if isinstance(value, (dict, list)) else quote(value)
        self.wrong.add(
            "is missing" if missing else f"is {shown}", where=self._path + name, allowed=allowed
        )

    def refuse(self, name: str, message: str, allowed: str = "") -> None:
        """Notes that `name` asks for something we do not support."""
        self.unsupported.add(message, where=self._path + name, allowed=allowed)

    def finish(self) -> None:
        """Raises everything noted: `UsageError` when a value is wrong, else `UnsupportedError`."""
        if self.wrong:
            self.wrong.extend(self.unsupported)
            self.wrong.raise_if_any()
        self.unsupported.raise_if_any()

    def _read(
        self,
        name: str,
        default: Any,
        nullable: bool,
        fits: Callable[[Any], bool],
        allowed: str,
        stand_in: T,
    ) -> T:
        value = self.raw(name)
        absent = name not in self._data or (nullable and value is None)
        if absent and not isinstance(default, Absent):
            return default  # type: ignore[no-any-return]
        if not fits(value):
            self.note_wrong(name, value, allowed)
            return stand_in
        return value  # type: ignore[no-any-return]


def _number_fits(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and low <= value <= high
