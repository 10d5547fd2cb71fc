"""Owns reading a batch file: one request a line, each bad line by itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..artifact.bounded_json import Json, JsonTextError, parse_json
from ..errors import RequestError, shown

MAX_LINE_BYTES = 64 << 20
MAX_CUSTOM_ID = 512
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Line:
    """Line `number` (from 1) of the file. `problem`: why it is no request."""

    number: int
    custom_id: str | None
    url: str = ""
    body: dict[str, Json] | None = None
    problem: str = ""


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a batch file that are not blank. Raises RequestError."""
    seen: set[str] = set()
    for number, text in raw_lines(path):
        line = parse_line(number, text)
        if not line.problem and line.custom_id is not None:
            if line.custom_id in seen:
                problem = f"custom_id {shown(line.custom_id)} is that of an earlier line"
                line = Line(number, line.custom_id, problem=problem)
            seen.add(line.custom_id or "")
        yield line


def parse_line(number: int, text: bytes) -> Line:
    """Return the request that a line holds, or what is wrong with it."""
    if len(text) > MAX_LINE_BYTES:
        return Line(number, None, problem=f"line is longer than {MAX_LINE_BYTES} bytes")
    try:
        value = parse_json(text)
    except JsonTextError as error:
        return Line(number, None, problem=str(error))
    if not isinstance(value, dict):
        return Line(number, None, problem=f"must be a JSON object, is {shown(value)}")
    custom_id, method, url, body = (value.get(k) for k in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        allowed = f"must be a string of 1 to {MAX_CUSTOM_ID} characters"
        return Line(number, None, problem=f"custom_id: {allowed}, is {shown(custom_id)}")
    problem = ""
    if method != "POST":
        problem = f'method: must be "POST", is {shown(method)}'
    elif url not in (CHAT, COMPLETIONS):
        problem = f"url: must be {CHAT} or {COMPLETIONS}, is {shown(url)}"
    elif not isinstance(body, dict):
        problem = f"body: must be an object, is {shown(body)}"
    if problem or not isinstance(body, dict):
        return Line(number, custom_id, problem=problem)
    return Line(number, custom_id, str(url), body)


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number, bytes) of each line that is not blank; of one too long, its beginning.

    Raises RequestError where the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while text := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(text) > MAX_LINE_BYTES:
                    _skip_line(file, text)
                if not text.isspace():
                    yield number, text
    except OSError as error:
        raise RequestError(f"{path}: cannot read it ({error.strerror})") from None


def _skip_line(file: BinaryIO, text: bytes) -> None:
    while text and not text.endswith(b"\n"):
        text = file.readline(1 << 20)
