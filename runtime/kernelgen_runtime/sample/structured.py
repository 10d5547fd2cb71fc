"""Owns what an answer may be bound to: a JSON schema, an expression, choices, calls of tools."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..artifact.bounded_json import Json, JsonTextError, parse_json
from ..errors import RequestError, shown

MAX_TEXT = 128 << 10
MAX_PATTERN = 4096
MAX_DEPTH = 32
MAX_NODES = 1024
"""schemas within a schema"""
MAX_PROPERTIES = 512
MAX_ENUM = 4096
"""values of all lists of a schema together, and choices"""
MAX_MARKER = 64


@dataclass(frozen=True)
class Structured:
    """What generated text must be. Raises RequestError where it is none, or too large to follow.

    `kind` says what `text` is: "json_schema" (the schema), "json_object" (nothing), "regex" (an
    expression without look-around), "choice" (a JSON list of strings), "lark" (a grammar of
    llguidance) or "calls" (see `guide.calls`). With `closes`, free text goes before, up to and
    with this marker: what a model thinks aloud. `opens` is the marker that begins it, "" where
    the prompt has it already; with `opens` the thought may be left out.
    """

    kind: str
    text: str = ""
    opens: str = ""
    closes: str = ""

    def __post_init__(self) -> None:
        check = _CHECKS.get(self.kind)
        if check is None:
            kinds = ", ".join(_CHECKS)
            raise RequestError(f"structured: kind must be one of {kinds}, is {shown(self.kind)}")
        for name, value, most in (
            ("text", self.text, MAX_TEXT),
            ("opens", self.opens, MAX_MARKER),
            ("closes", self.closes, MAX_MARKER),
        ):
            if not isinstance(value, str):
                raise RequestError(f"structured: {name} must be text, is {shown(value)}")
            if len(value) > most:
                raise RequestError(
                    f"structured: {self.kind} of {len(value)} characters, at most {most}"
                )
        check(self.text)

    @property
    def schema(self) -> Json:
        """The schema of JSON that is asked for, parsed."""
        return parse_json(self.text) if self.text else {"type": "object"}

    def to_json(self) -> dict[str, Json]:
        """Return the fields as JSON has them."""
        return {"kind": self.kind, "text": self.text, "opens": self.opens, "closes": self.closes}

    @classmethod
    def from_json(cls, value: Json) -> "Structured":
        """Return what `to_json` gave. Raises RequestError."""
        names = ("kind", "text", "opens", "closes")
        if not isinstance(value, dict) or not value.keys() <= set(names):
            raise RequestError(f"structured: must be an object of {', '.join(names)}")
        return cls(**{name: value.get(name, "") for name in names})  # type: ignore[arg-type]


def schema_of(value: Json, **more: str) -> Structured:
    """Return the bond to a JSON schema that is parsed already. Raises RequestError."""
    if not isinstance(value, dict | bool):
        raise RequestError(f"JSON schema: must be an object, is {shown(value)}")
    return Structured("json_schema", json.dumps(value, ensure_ascii=False), **more)


def check_schema(value: Json) -> None:
    """Raise RequestError where a schema is nested too deeply or has too many parts."""
    nodes = values = 0
    for path, depth, node in _walk(value):
        if depth > MAX_DEPTH:
            raise RequestError(f"JSON schema: nested more than {MAX_DEPTH} deep at {shown(path)}")
        if isinstance(node, Mapping):
            nodes += 1
            properties, pattern = node.get("properties"), node.get("pattern")
            if isinstance(properties, Mapping) and len(properties) > MAX_PROPERTIES:
                raise RequestError(
                    f"JSON schema: {len(properties)} properties at {shown(path)}, "
                    f"at most {MAX_PROPERTIES}"
                )
            if isinstance(pattern, str):
                _check_pattern(pattern)
        elif isinstance(node, list):
            values += len(node)
        if nodes > MAX_NODES or values > MAX_ENUM:
            raise RequestError(
                f"JSON schema: more than {MAX_NODES} parts or {MAX_ENUM} listed values"
            )


def _walk(value: Json) -> Iterator[tuple[str, int, Json]]:
    """Yield (last key, depth, node) of every object and list; keeps a stack of its own."""
    rest: list[tuple[str, int, Json]] = [("the top", 0, value)]
    while rest:
        key, depth, node = rest.pop()
        yield key, depth, node
        inner = (
            node.items()
            if isinstance(node, Mapping)
            else ((key, one) for one in (node if isinstance(node, list) else ()))
        )
        # A level of a schema is two of its JSON: "properties" and what they are.
        step = isinstance(node, Mapping) and "properties" not in node
        rest += [(k, depth + step, v) for k, v in inner if isinstance(v, dict | list)]


def _json_schema(text: str) -> None:
    try:
        value = parse_json(text)
    except JsonTextError as error:
        raise RequestError(f"JSON schema: {error}") from None
    if not isinstance(value, dict | bool):
        raise RequestError(f"JSON schema: must be an object, is {shown(value)}")
    check_schema(value)


def _check_pattern(text: str) -> None:
    if not 0 < len(text) <= MAX_PATTERN:
        raise RequestError(f"regex: must have 1 to {MAX_PATTERN} characters, has {len(text)}")


def _choice(text: str) -> None:
    try:
        value = parse_json(text)
    except JsonTextError as error:
        raise RequestError(f"choice: {error}") from None
    if (
        not isinstance(value, list)
        or not 0 < len(value) <= MAX_ENUM
        or not all(isinstance(one, str) and one for one in value)
    ):
        raise RequestError(f"choice: must be 1 to {MAX_ENUM} strings, none empty")


def _nothing(text: str) -> None:
    if text:
        raise RequestError(f"json_object: takes no text, has {shown(text)}")


def _lark(text: str) -> None:
    if not text.strip():
        raise RequestError("grammar: is empty")


def _calls(text: str) -> None:
    try:
        value = parse_json(text)
    except JsonTextError as error:
        raise RequestError(f"tools: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("tools"), list):
        raise RequestError("tools: must be an object with a list of tools")
    check_schema(value)


_CHECKS: dict[str, Callable[[str], None]] = {
    "json_schema": _json_schema,
    "json_object": _nothing,
    "regex": _check_pattern,
    "choice": _choice,
    "lark": _lark,
    "calls": _calls,
}
