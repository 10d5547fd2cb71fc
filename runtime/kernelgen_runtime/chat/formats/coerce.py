"""Owns making a value of a schema's type out of the text that stands for it in a call."""

import json
from collections.abc import Mapping
from typing import Any

from ...artifact.bounded_json import Json, JsonTextError, parse_json

MAX_DEPTH = 16
_NUMBERS = frozenset("+-.eE0123456789")


def coerce(text: str, schema: Any, root: Any = None, depth: int = 0) -> Json:
    """Return the value that `text` means under `schema`; the text itself where nothing fits.

    A type of text keeps its text, whatever it looks like. Without a schema JSON counts, except
    for a string in quotes. `root` holds what references mean.
    """
    root = schema if root is None else root
    kinds = types_of(schema, root, depth)
    for kind in _ORDER:
        if kind in kinds:
            found, value = _CASTS[kind](text.strip())
            if found and (kind != "object" or isinstance(value, dict)):
                return value
    if "string" in kinds:
        return text
    if not kinds:
        try:
            value = parse_json(text)
        except JsonTextError:
            return text
        return text if isinstance(value, str) else value
    return text


def fit(value: Json, schema: Any, root: Any = None, depth: int = 0) -> Json:
    """Return a JSON value with texts inside it made what `schema` says they are.

    Only what has the wrong type changes: "5" where a number is asked, 5 where text is.
    """
    root = schema if root is None else root
    if depth > MAX_DEPTH or not isinstance(schema, Mapping):
        return value
    schema = resolved(schema, root)
    kinds = types_of(schema, root)
    if isinstance(value, dict):
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        return {k: fit(v, known.get(k), root, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [fit(one, schema.get("items"), root, depth + 1) for one in value]
    if isinstance(value, str):
        return coerce(value, schema, root) if kinds and "string" not in kinds else value
    if kinds == {"string"} and value is not None:
        return json.dumps(value)
    return value


def types_of(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema allows; empty where it says nothing."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return frozenset()
    schema = resolved(schema, root)
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset([kind])
    if isinstance(kind, list):
        return frozenset(one for one in kind if isinstance(one, str))
    found: set[str] = set()
    for name in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(name)
        for part in parts if isinstance(parts, list) else ():
            found |= types_of(part, root, depth + 1)
    values = schema.get("enum")
    for value in values if isinstance(values, list) else ():
        found.add(_type_of(value))
    if "const" in schema:
        found.add(_type_of(schema["const"]))
    if not found and "properties" in schema:
        found.add("object")
    return frozenset(found)


def resolved(schema: Mapping[str, Any], root: Any) -> Mapping[str, Any]:
    """Return what a schema's reference within `root` means; itself where it has none."""
    for _ in range(MAX_DEPTH):
        place = schema.get("$ref")
        if not isinstance(place, str) or not place.startswith("#"):
            return schema
        target = root
        for name in place[1:].strip("/").split("/"):
            if name:
                target = target.get(name) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            return {}
        schema = target
    return {}


def _type_of(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names[type(value)]


def _null(text: str) -> tuple[bool, Json]:
    return text.lower() in ("null", "none"), None


def _boolean(text: str) -> tuple[bool, Json]:
    return text.lower() in ("true", "false"), text.lower() == "true"


def _integer(text: str) -> tuple[bool, Json]:
    found, value = _number(text)
    if found and isinstance(value, float):
        return value.is_integer(), int(value) if value.is_integer() else None
    return found, value


def _number(text: str) -> tuple[bool, Json]:
    if not text or len(text) > 400 or not set(text) <= _NUMBERS:
        return False, None
    try:
        value = parse_json(text.removeprefix("+"))
    except JsonTextError:
        return False, None
    return isinstance(value, int | float) and not isinstance(value, bool), value


def _array(text: str) -> tuple[bool, Json]:
    value = _json(text)
    return isinstance(value, list), value


def _object(text: str) -> tuple[bool, Json]:
    value = _json(text)
    return isinstance(value, dict), value


def _json(text: str) -> Json:
    try:
        return parse_json(text)
    except JsonTextError:
        return None


# From the narrowest to the widest: "5" is an integer where that is allowed, text last of all.
_ORDER = ("null", "boolean", "integer", "number", "array", "object")
_CASTS = {
    "null": _null,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "array": _array,
    "object": _object,
}
