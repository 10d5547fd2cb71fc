"""Owns taking typed fields out of parsed JSON, collecting every problem and not the first."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import shown
from .bounded_json import Json

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,255}")
INT32_MAX = 2**31 - 1
SIZE_MAX = 2**48


@dataclass(frozen=True)
class Fields:
    """One JSON object, where it stands in its file, and the list that problems are added to."""

    values: dict[str, Json]
    where: str
    problems: list[str]

    def wrong(self, key: str, message: str) -> None:
        """Note that field `key` is not acceptable."""
        self.problems.append(f"{self.where}{key}: {message}")

    def _has(self, key: str) -> bool:
        if key not in self.values:
            self.wrong(key, "missing")
        return key in self.values

    def integer(self, key: str, low: int = 0, high: int = INT32_MAX) -> int:
        """Return integer `key` within [low, high]; `low` where it is not acceptable."""
        if self._has(key):
            value = self.values[key]
            if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
                return value
            self.wrong(key, f"must be an integer from {low} to {high}, is {shown(value)}")
        return low

    def optional_integer(self, key: str, low: int = 0, high: int = INT32_MAX) -> int | None:
        """Return integer `key`, or None where it is null."""
        if self._has(key) and self.values[key] is not None:
            return self.integer(key, low, high)
        return None

    def number(self, key: str) -> float:
        """Return number `key` as a float; 0 where it is not acceptable."""
        if self._has(key):
            value = _real(self.values[key])
            if value is not None:
                return value
            self.wrong(key, f"must be a number, is {shown(self.values[key])}")
        return 0.0

    def boolean(self, key: str) -> bool:
        """Return boolean `key`; False where it is not acceptable."""
        if self._has(key):
            value = self.values[key]
            if isinstance(value, bool):
                return value
            self.wrong(key, f"must be true or false, is {shown(value)}")
        return False

    def text(self, key: str, max_length: int = 1024) -> str:
        """Return string `key`, not empty and of bounded length; "" where it is not acceptable."""
        if self._has(key):
            value = self.values[key]
            if isinstance(value, str) and 0 < len(value) <= max_length:
                return value
            self.wrong(key, f"must be a string of 1 to {max_length} characters, is {shown(value)}")
        return ""

    def identifier(self, key: str) -> str:
        """Return string `key` made of letters, digits, `_`, `-` and `.` only."""
        value = self.text(key)
        if value and not _IDENTIFIER.fullmatch(value):
            self.wrong(key, f"must be a plain name, is {shown(value)}")
            return ""
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        """Return string `key`, one of `allowed`; the first of them where it is not acceptable."""
        value = self.text(key)
        if value in allowed:
            return value
        if value:
            self.wrong(key, f"must be one of {', '.join(allowed)}, is {shown(value)}")
        return allowed[0]

    def array(self, key: str, max_length: int) -> list[Json]:
        """Return list `key` of bounded length; [] where it is not acceptable."""
        if self._has(key):
            value = self.values[key]
            if isinstance(value, list) and len(value) <= max_length:
                return value
            self.wrong(key, f"must be a list of at most {max_length}, is {shown(value)}")
        return []

    def integers(self, key: str, max_length: int, high: int = SIZE_MAX) -> tuple[int, ...]:
        """Return list `key` of integers from 0 to `high`."""
        items = self.array(key, max_length)
        good = tuple(
            i for i in items if isinstance(i, int) and not isinstance(i, bool) and 0 <= i <= high
        )
        if len(good) != len(items):
            self.wrong(key, f"must hold integers from 0 to {high} only")
        return good

    def texts(self, key: str, max_length: int) -> tuple[str, ...]:
        """Return list `key` of strings of 1 to 1024 characters."""
        items = self.array(key, max_length)
        good = tuple(i for i in items if isinstance(i, str) and 0 < len(i) <= 1024)
        if len(good) != len(items):
            self.wrong(key, "must hold strings of 1 to 1024 characters only")
        return good

    def numbers(self, key: str, max_length: int) -> tuple[float, ...]:
        """Return list `key` of numbers."""
        items = self.array(key, max_length)
        good = tuple(real for item in items if (real := _real(item)) is not None)
        if len(good) != len(items):
            self.wrong(key, "must hold numbers only")
        return good

    def object(self, key: str) -> "Fields":
        """Return object `key`; an empty one where it is not acceptable."""
        if self._has(key):
            value = self.values[key]
            if isinstance(value, dict):
                return Fields(value, f"{self.where}{key}.", self.problems)
            self.wrong(key, f"must be an object, is {shown(value)}")
        # Its own problem list: one line for the object is enough, its fields need no further line.
        return Fields({}, f"{self.where}{key}.", [])

    def objects(self, key: str, max_length: int) -> Iterator["Fields"]:
        """Yield every object of list `key`."""
        for i, item in enumerate(self.array(key, max_length)):
            if isinstance(item, dict):
                yield Fields(item, f"{self.where}{key}[{i}].", self.problems)
            else:
                self.wrong(f"{key}[{i}]", f"must be an object, is {shown(item)}")


def _real(value: Json) -> float | None:
    """Return a number as a float; None for anything else, a 400-digit integer included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value)
