"""Owns finding where a JSON object or list ends, in text that is not whole yet."""

import re
from dataclasses import dataclass, field

from ...artifact.bounded_json import Json, JsonTextError, parse_json

MAX_DEPTH = 64
# Outside strings only these can stand in JSON; anything else ends the search at once.
_PLAIN = re.compile(r"[^\"{}\[\]<>|`;=()@#$%&*!?~^/'\\]*")
_STRING = re.compile(r'[^"\\]*')


class NoJsonError(ValueError):
    """The text is no JSON, whatever comes after it."""


@dataclass
class JsonSpan:
    """A search that goes on where it stopped; `start` is the place of the first bracket."""

    start: int
    at: int = field(init=False)
    _open: list[str] = field(default_factory=list)
    _in_string: bool = False
    _end: int | None = None

    def __post_init__(self) -> None:
        self.at = self.start

    def find(self, text: str) -> int | None:
        """Return the place behind the value; None where it is not whole. Raises NoJsonError."""
        while self._end is None and self.at < len(text):
            if self._in_string:
                if not self._leave_string(text):
                    return None
                continue
            match = _PLAIN.match(text, self.at)
            self.at = match.end() if match else self.at
            if self.at >= len(text):
                return None
            character = text[self.at]
            self.at += 1
            if character == '"':
                self._in_string = True
            elif character in "{[":
                self._open.append("}" if character == "{" else "]")
                if len(self._open) > MAX_DEPTH:
                    raise NoJsonError("nested too deeply")
            elif not self._open or self._open.pop() != character:
                raise NoJsonError("unbalanced")
            if not self._open and not self._in_string:
                self._end = self.at
        return self._end

    def _leave_string(self, text: str) -> bool:
        """Go to the end of a string; False where it is not there yet."""
        match = _STRING.match(text, self.at)
        self.at = match.end() if match else self.at
        if self.at >= len(text):
            return False
        if text[self.at] == '"':
            self.at += 1
            self._in_string = False
            return True
        if self.at + 1 >= len(text):
            return False  # what a backslash is for is not there yet
        self.at += 2
        return True


def parsed(text: str) -> Json:
    """Return the value of `text`. Raises NoJsonError where it is none.

    Models write line breaks inside strings as they are; JSON has them escaped.
    """
    try:
        return parse_json(text)
    except JsonTextError:
        try:
            return parse_json(_ESCAPABLE.sub(_escaped_string, text))
        except JsonTextError as error:
            raise NoJsonError(str(error)) from None


_ESCAPABLE = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


def _escaped_string(match: re.Match[str]) -> str:
    return match.group().translate(_BREAKS)
