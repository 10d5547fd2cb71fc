"""Owns JSON: canonical text, bounded strict reading, and the codec of frozen dataclasses."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from kernelgen.core.errors import UsageError, quote
from kernelgen.core.files import read_bounded
from kernelgen.core.typehints import field_types

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"
    )
else:
    JsonValue = (
        Any  # get_type_hints cannot resolve a recursive alias; to a decoder it is "anything"
    )

MAX_BYTES = 64 << 20  # tokenizer.json of a 256k vocabulary is 34 MB
MAX_DEPTH = 64


class JsonError(UsageError):
    """A file or text that is not the strict JSON we read."""


class _Refused(ValueError):
    """What a hook of the JSON reader refuses; the message is ours and safe to print."""


def to_json(value: object) -> JsonValue:
    """JSON data of frozen dataclasses, enums, mappings, sequences and plain values.

    Fields keep their order; an int in a `float` field becomes a float, so that the text does not
    change over a round trip. Anything else (sets, paths, NaN) is a `TypeError` or `ValueError`:
    our own mistake.
    """
    if isinstance(value, enum.Enum):
        return to_json(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no {value}")
        return value
    if is_dataclass(value) and not isinstance(value, type):
        types = field_types(type(value))
        out: dict[str, JsonValue] = {}
        for field in fields(value):
            item = getattr(value, field.name)
            if types[field.name] is float and type(item) is int:
                item = float(item)
            out[field.name] = to_json(item)
        return out
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            raise TypeError(f"JSON keys must be strings: {quote(list(value))}")
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form")


def dumps(value: object) -> str:
    """Canonical text: sorted keys, no spaces, ASCII, shortest floats. Digests are made of it."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def dumps_readable(value: object) -> str:
    """Text for people: fields in their own order, two spaces, a newline at the end.

    Just as deterministic as `dumps`; lists of plain numbers stay on one line.
    """
    return _readable(to_json(value), "") + "\n"


def _readable(value: JsonValue, indent: str) -> str:
    if isinstance(value, dict) and value:
        inner = indent + "  "
        items = [f"{inner}{json.dumps(k)}: {_readable(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        inner = indent + "  "
        return "[\n" + ",\n".join(inner + _readable(v, inner) for v in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def loads(text: str | bytes, *, source: str, max_bytes: int = MAX_BYTES) -> JsonValue:
    """Reads strict JSON; `source` names it in errors (`JsonError`).

    Refused: duplicate keys, NaN and infinities, numbers beyond float64, text that is not UTF-8,
    more than `max_bytes` bytes, nesting deeper than 64.
    """
    if len(text) > max_bytes:
        raise JsonError(f"is longer than {max_bytes} bytes", where=source)
    try:
        value: JsonValue = json.loads(
            text.decode("utf-8-sig") if isinstance(text, bytes) else text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        where = f"{source}: line {error.lineno} column {error.colno}"
        raise JsonError(f"not JSON: {error.msg}", where=where) from None
    except RecursionError:
        raise JsonError(f"nested deeper than {MAX_DEPTH}", where=source) from None
    except UnicodeDecodeError:
        raise JsonError("not UTF-8 text", where=source) from None
    except ValueError as error:  # from the hooks below, or an integer of thousands of digits
        what = str(error) if isinstance(error, _Refused) else "an integer has too many digits"
        raise JsonError(f"not strict JSON: {what}", where=source) from None
    if _depth_exceeds(value, MAX_DEPTH):
        raise JsonError(f"nested deeper than {MAX_DEPTH}", where=source)
    return value


def load_file(path: Path, *, max_bytes: int = MAX_BYTES) -> JsonValue:
    """Reads a JSON file as `loads` does; a missing or unreadable one is a `UsageError`."""
    return loads(read_bounded(path, max_bytes), source=str(path), max_bytes=max_bytes)


def load_object(path: Path, *, max_bytes: int = MAX_BYTES) -> dict[str, JsonValue]:
    """Reads a JSON file whose top must be an object."""
    value = load_file(path, max_bytes=max_bytes)
    if not isinstance(value, dict):
        raise JsonError(f"must hold an object, not {json_kind(value)}", where=str(path))
    return value


def json_kind(value: object) -> str:
    """What JSON calls the kind of a value: "object", "array", "number", …"""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    out: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in out:
            raise _Refused(f"key {quote(key)} occurs twice in one object")
        out[key] = value
    return out


def _refuse_constant(text: str) -> NoReturn:
    raise _Refused(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused(f"number {quote(text)} is beyond float64")
    return value


def _depth_exceeds(value: JsonValue, limit: int) -> bool:
    level: list[JsonValue] = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for item in level
            if isinstance(item, (dict, list))
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True
