"""Owns calls that are JSON between markers: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

Hermes (Qwen3, Granite 4), Granite 3 (a list behind a marker), and Llama 3 (bare, or behind the
marker of its interpreter).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...artifact.bounded_json import Json
from .json_span import JsonSpan, NoJsonError, parsed
from .reading import MAX_CALL, Found, Progress, Reading, Schemas, may_become, skip_space


@dataclass(frozen=True)
class JsonFormat:
    """`closers`: what must follow the value behind an opening marker, "" for nothing."""

    name: str
    style: str
    closers: Mapping[str, str]
    starts: tuple[str, ...] = ()
    code: str = ""
    """marker behind which `tool.call(key="value")` may stand too"""

    @property
    def opens(self) -> tuple[str, ...]:
        """Markers at which a call begins."""
        return tuple(self.closers)

    @property
    def markers(self) -> tuple[str, ...]:
        """Opening and closing markers."""
        return (*self.closers, *filter(None, self.closers.values()))

    def read(self, text: str, is_all: bool, schemas: Schemas, progress: Progress) -> Reading | None:
        """Return the call at the start of `text`; see `ToolFormat`."""
        marker = next((one for one in self.opens if text.startswith(one)), "")
        nothing = Reading(len(marker) or 1)
        start = skip_space(text, len(marker))
        if len(text) > MAX_CALL or (start >= len(text) and is_all):
            return nothing
        if start >= len(text):
            return None
        if text[start] not in "{[":
            if marker and marker == self.code:
                return _python_call(text, start, is_all, len(marker))
            return nothing
        if not progress.made:
            progress.made.append(JsonSpan(start))
        try:
            end = progress.made[0].find(text)
            if end is None:
                return nothing if is_all else None
            calls = _calls(parsed(text[start:end]))
        except NoJsonError:
            return nothing
        length = _behind(text, end, self.closers.get(marker, ""), is_all)
        if length is None or calls is None:
            return None if calls is not None and not is_all else nothing
        return Reading(length, calls) if length else nothing


def _behind(text: str, end: int, closer: str, is_all: bool) -> int | None:
    """Return the place behind what closes a call; None if it may come, 0 where it cannot."""
    if not closer:
        return end
    at = skip_space(text, end)
    if text.startswith(closer, at):
        return at + len(closer)
    if may_become(text[at:], closer):
        # A text that ends right behind a whole value has lost its end marker only.
        return len(text) if is_all else None
    return 0


def _calls(value: Json) -> tuple[Found, ...] | None:
    """Return the calls of an object or of a list of them; None where one is none."""
    found = [_call(one) for one in (value if isinstance(value, list) else [value])]
    calls = tuple(call for call in found if call is not None)
    return calls if calls and len(calls) == len(found) else None


def _call(value: Json) -> Found | None:
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    if isinstance(inner, dict):
        value = inner
    name = value.get("name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # some write the object as text
        try:
            arguments = parsed(arguments or "{}")
        except NoJsonError:
            return None
    if arguments is None:
        arguments = {}
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return Found(name, arguments)


_NAME = re.compile(r"([A-Za-z_][\w-]{0,63})\.call\(")
_NAME_BEGUN = re.compile(r"[A-Za-z_][\w-]{0,63}(\.(c(a(l(l)?)?)?)?)?\Z")
_PAIR = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*("(?:[^"\\]|\\.)*"|[-+.\w]+)\s*(,|\)|\Z)', re.DOTALL)


def _python_call(text: str, start: int, is_all: bool, marker: int) -> Reading | None:
    """Return `tool.call(key="value", …)`, which Llama writes for tools that it knows.

    It is read only once the text has ended: nothing follows such a call.
    """
    if not is_all:
        head = _NAME.match(text, start)
        return None if head or _NAME_BEGUN.match(text, start) else Reading(marker)
    head = _NAME.match(text, start)
    if head is None:
        return Reading(marker)
    arguments: dict[str, Json] = {}
    at = head.end()
    if text[at:].strip() == ")":
        return Reading(len(text), (Found(head.group(1), arguments),))
    while pair := _PAIR.match(text, at):
        key, value, after = pair.groups()
        try:
            arguments[key] = parsed(value)
        except NoJsonError:
            arguments[key] = value
        at = pair.end()
        if after != ",":
            sound = after == ")" and not text[at:].strip()
            return (
                Reading(len(text), (Found(head.group(1), arguments),))
                if sound
                else (Reading(marker))
            )
    return Reading(marker)


HERMES = JsonFormat("hermes", "hermes", {"<tool_call>": "</tool_call>"})
GRANITE = JsonFormat("granite", "granite", {"<|tool_call|>": "", "<tool_call>": "</tool_call>"})
LLAMA = JsonFormat(
    "llama3_json", "bare_json", {"<|python_tag|>": ""}, starts=("{",), code="<|python_tag|>"
)
