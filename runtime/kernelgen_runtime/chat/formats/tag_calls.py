"""Owns calls with a tag for each argument: DeepSeek V4 (DSML), Kimi K3 (XTML), Qwen3-Coder."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...artifact.bounded_json import Json
from .coerce import coerce
from .json_span import NoJsonError, parsed
from .reading import MAX_CALL, Found, Progress, Reading, Schemas, may_become, skip_space

MAX_TAG = 1024
Attributes = Mapping[str, str]
ReadValue = Callable[[str, Attributes, object], Json]


@dataclass(frozen=True)
class Tag:
    """An opening tag: it begins with `begins` and ends with the first `ends` behind that.

    `inside` finds its attributes by group name, in the text between.
    """

    begins: str
    ends: str
    inside: re.Pattern[str]

    def read(self, text: str, at: int) -> tuple[int, Attributes] | None:
        """Return the place behind it and its attributes; None where it is not whole.

        Raises NotThisError where another thing begins at `at`.
        """
        if may_become(text[at : at + len(self.begins)], self.begins):
            return None
        if not text.startswith(self.begins, at):
            raise NotThisError
        first = at + len(self.begins)
        last = text.find(self.ends, first, first + MAX_TAG)
        if last < 0:
            if len(text) >= first + MAX_TAG:
                raise NotThisError
            return None
        match = self.inside.fullmatch(text[first:last])
        if match is None:
            raise NotThisError
        return last + len(self.ends), {k: v or "" for k, v in match.groupdict().items()}


class NotThisError(Exception):
    """The text is something else, whatever comes after it."""


class _MoreNeededError(Exception):
    """The text is a beginning so far."""


@dataclass(frozen=True)
class TagFormat:
    """`sections`: opening markers of sections, with those that close them; `before`: markers that
    a call may have in front, with what must follow it then.
    """

    name: str
    style: str
    call: Tag
    call_ends: str
    argument: Tag
    argument_ends: str
    value: ReadValue
    sections: Mapping[str, str]
    before: tuple[str, str] = ("", "")
    whole: tuple[Tag, str] | None = None
    """a tag, and its end, that holds all arguments as one JSON object"""
    starts: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """more markers of the family"""

    @property
    def opens(self) -> tuple[str, ...]:
        """Markers of sections and calls."""
        around = (*self.sections, *self.sections.values())
        return tuple(filter(None, (*around, self.before[0], self.call.begins)))

    @property
    def markers(self) -> tuple[str, ...]:
        """Pieces of text that must reach `read` even where they are special tokens."""
        return tuple(filter(None, (*self.opens, *self.before, self.argument_ends, *self.others)))

    def read(self, text: str, is_all: bool, schemas: Schemas, progress: Progress) -> Reading | None:
        """Return the call at the start of `text`, with what opens its section before it."""
        for closes in self.sections.values():
            if text.startswith(closes):
                return Reading(len(closes), is_markup=True)
        first = next((one for one in self.opens if text.startswith(one)), text[:1])
        nothing = Reading(len(first))
        if len(text) > MAX_CALL:
            return nothing
        try:
            return self._read(text, is_all, schemas, progress)
        except NotThisError:
            return nothing
        except _MoreNeededError:
            return nothing if is_all else None

    def _read(self, text: str, is_all: bool, schemas: Schemas, progress: Progress) -> Reading:
        """Read a call. Raises NotThisError, _MoreNeededError."""
        if not progress.made:
            at = self._enter(text)
            is_wrapped = bool(self.before[0]) and text[:at].rstrip().endswith(self.before[0])
            behind, attributes = _needed(self.call.read(text, at))
            name = _unescaped(attributes["name"])
            if not name.strip():
                raise NotThisError
            progress.made += [name.strip(), {}, is_wrapped]
            progress.at = behind
        name, arguments, is_wrapped = progress.made
        while not self._ends(text, progress.at):
            progress.at = self._argument(text, progress.at, arguments, schemas.get(name))
        end = skip_space(text, progress.at) + len(self.call_ends)
        if is_wrapped:
            at = skip_space(text, end)
            if text.startswith(self.before[1], at):
                end = at + len(self.before[1])
            elif not may_become(text[at:], self.before[1]):
                raise NotThisError
            elif not is_all:
                raise _MoreNeededError
            else:
                end = len(text)
        return Reading(end, (Found(name, arguments),))

    def _enter(self, text: str) -> int:
        """Return where the call's own tag begins, behind section and wrapper."""
        at = 0
        for marker in (*self.sections, self.before[0]):
            if marker and text.startswith(marker, at):
                at = skip_space(text, at + len(marker))
        if at and self.before[0] and may_become(text[at:], self.before[0]):
            raise _MoreNeededError
        return at

    def _ends(self, text: str, at: int) -> bool:
        at = skip_space(text, at)
        if may_become(text[at:], self.call_ends):
            # It may as well be the beginning of an argument's tag: more of it tells.
            raise _MoreNeededError
        return text.startswith(self.call_ends, at)

    def _argument(self, text: str, at: int, made: dict[str, Json], schema: object) -> int:
        at = skip_space(text, at)
        tag, ends = self.argument, self.argument_ends
        if self.whole is not None and _begins(self.whole[0], text, at):
            tag, ends = self.whole
        behind, attributes = _needed(tag.read(text, at))
        close = text.find(ends, behind)
        if close < 0:
            raise _MoreNeededError
        raw = text[behind:close]
        if tag is not self.argument:
            try:
                value = parsed(raw)
            except NoJsonError:
                raise NotThisError from None
            if not isinstance(value, dict):
                raise NotThisError
            made.update(value)
        else:
            key = _unescaped(attributes["key"]).strip()
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            known = properties if isinstance(properties, Mapping) else {}
            made[key] = self.value(raw, attributes, (known.get(key), schema))
        return close + len(ends)


def _begins(tag: Tag, text: str, at: int) -> bool:
    if may_become(text[at:], tag.begins):
        raise _MoreNeededError
    return text.startswith(tag.begins, at)


def _needed(found: tuple[int, Attributes] | None) -> tuple[int, Attributes]:
    if found is None:
        raise _MoreNeededError
    return found


def _unescaped(value: str) -> str:
    return value.replace("&quot;", '"').replace("&amp;", "&")


def _dsml_value(raw: str, attributes: Attributes, about: object) -> Json:
    return raw if attributes["text"] == "true" else _typed(raw, about)


def _xtml_value(raw: str, attributes: Attributes, about: object) -> Json:
    return raw if attributes["type"] == "string" else _typed(raw, about)


def _typed(raw: str, about: object) -> Json:
    """JSON as it is; what is none is made what the schema asks for."""
    try:
        return parsed(raw)
    except NoJsonError:
        return _coerced(raw, {}, about)


def _coerced(raw: str, attributes: Attributes, about: object) -> Json:
    schema, root = about if isinstance(about, tuple) else (None, None)
    if schema is None:
        return coerce(raw, None)
    return coerce(raw, schema, root)


def _line_value(raw: str, attributes: Attributes, about: object) -> Json:
    """A value on lines of its own: the breaks around it are not part of it."""
    return _coerced(raw.removeprefix("\n").removesuffix("\n"), attributes, about)


DEEPSEEK_V4 = TagFormat(
    "deepseek_v4",
    "deepseek_v4",
    Tag("<｜DSML｜invoke", ">", re.compile(r'\s+name="(?P<name>[^"]*)"\s*')),
    "</｜DSML｜invoke>",
    Tag(
        "<｜DSML｜parameter",
        ">",
        re.compile(r'\s+name="(?P<key>[^"]*)"(?:\s+string="(?P<text>true|false)")?\s*'),
    ),
    "</｜DSML｜parameter>",
    _dsml_value,
    {
        "<｜DSML｜tool_calls>": "</｜DSML｜tool_calls>",
        "<｜DSML｜function_calls>": "</｜DSML｜function_calls>",
    },
    others=("｜DSML｜",),
)
KIMI_K3 = TagFormat(
    "kimi_k3",
    "kimi_k3",
    Tag(
        "<|open|>call",
        "<|sep|>",
        re.compile(r'\s+tool="(?P<name>[^"]*)"(?:\s+index="[^"]*")?\s*'),
    ),
    "<|close|>call<|sep|>",
    Tag(
        "<|open|>argument",
        "<|sep|>",
        re.compile(r'\s+key="(?P<key>[^"]*)"(?:\s+type="(?P<type>[^"]*)")?\s*'),
    ),
    "<|close|>argument<|sep|>",
    _xtml_value,
    {"<|open|>tools<|sep|>": "<|close|>tools<|sep|>"},
    whole=(Tag("<|open|>json", "<|sep|>", re.compile("[^<]*")), "<|close|>json<|sep|>"),
    others=("<|open|>", "<|close|>", "<|sep|>"),
)
QWEN3_CODER = TagFormat(
    "qwen3_coder",
    "function_tags",
    Tag("<function=", ">", re.compile(r"(?P<name>[^<>\n]+)")),
    "</function>",
    Tag("<parameter=", ">", re.compile(r"(?P<key>[^<>\n]+)")),
    "</parameter>",
    _line_value,
    {},
    before=("<tool_call>", "</tool_call>"),
)
