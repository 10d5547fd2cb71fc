"""Owns what a format of tool calls says of a text, and how much of a marker a text ends with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...artifact.bounded_json import Json

MAX_CALL = 1 << 20
"""characters of a call; what is longer is text"""
Schemas = Mapping[str, Any]
"""the JSON schema of the arguments of each tool, by its name"""


@dataclass(frozen=True)
class Found:
    """A sound call: `arguments` are an object; `id` where the model gives one."""

    name: str
    arguments: dict[str, Json]
    id: str = ""


@dataclass(frozen=True)
class Reading:
    """What the first `length` characters of a text are: calls, or markup, or (neither) content."""

    length: int
    calls: tuple[Found, ...] = ()
    is_markup: bool = False


@dataclass
class Progress:
    """How far a call was read that was not whole yet; `at` and `made` are the format's own."""

    at: int = 0
    made: list[Any] = field(default_factory=list)


class ToolFormat(Protocol):
    """One way of writing calls.

    What `read` says of a text it must also say of every longer one: text comes in any pieces.
    """

    @property
    def name(self) -> str:
        """Name by which it can be asked for."""

    @property
    def style(self) -> str:
        """How calls are written that are asked for; see `guide.calls`."""

    @property
    def opens(self) -> tuple[str, ...]:
        """Markers at which calls, or markup around them, may begin."""

    @property
    def starts(self) -> tuple[str, ...]:
        """Markers that count only where nothing but calls went before."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All that must not be lost where a tokenizer has it as a special token."""

    def read(self, text: str, is_all: bool, schemas: Schemas, progress: Progress) -> Reading | None:
        """Return what `text` begins with; None where more text is needed (never if `is_all`).

        `text` begins with one of `opens` or `starts`. `progress` is kept until something is read.
        """


def partial_tail(text: str, markers: Iterable[str]) -> int:
    """Return how many of the last characters of `text` may be the beginning of a marker."""
    longest = 0
    for marker in markers:
        for size in range(min(len(marker) - 1, len(text)), longest, -1):
            if text.endswith(marker[:size]):
                longest = size
                break
    return longest


def may_become(text: str, marker: str) -> bool:
    """Whether `text` is a beginning of `marker`, not the whole of it."""
    return len(text) < len(marker) and marker.startswith(text)


def skip_space(text: str, at: int) -> int:
    """Return the place of the first character from `at` on that is no white space."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
