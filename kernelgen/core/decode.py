"""Owns reading JSON data into frozen dataclasses, driven by their type hints."""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from kernelgen.core.errors import KernelgenError, ProblemList, UsageError, quote
from kernelgen.core.jsonio import JsonValue, json_kind
from kernelgen.core.typehints import field_types

T = TypeVar("T")

_PLAIN: dict[Any, str] = {int: "an integer", float: "a number", str: "a string", bool: "a boolean"}
_BAD = object()  # marks a value that has been reported


def from_json(cls: type[T], value: JsonValue, *, source: str) -> T:
    """A `cls` made of JSON data; all problems of the data in one `UsageError` naming `source`.

    Fields may be plain values, enums, `Literal`, `tuple[X, ...]`, `tuple[X, Y]`, `list[X]`,
    `Mapping[str, X]`, other dataclasses, and unions of these (dataclasses of a union are told
    apart by a `Literal` field called `kind`). A missing field takes its default; an unknown one
    is a problem. What a `__post_init__` raises is reported with the path of its object.
    """
    problems = ProblemList(source, UsageError)
    result = _read(cls, value, "", problems)
    problems.raise_if_any()
    assert isinstance(result, cls)
    return result


def _read(hint: Any, value: Any, path: str, problems: ProblemList) -> Any:
    origin = get_origin(hint)
    if hint is Any or hint is object:
        return value
    if hint in _PLAIN:
        return _read_plain(hint, value, path, problems)
    if hint is None or hint is type(None):
        return None if value is None else _wrong("null", value, path, problems)
    if origin in (Union, types.UnionType):
        return _read_union(get_args(hint), value, path, problems)
    if origin is Literal:
        choices = get_args(hint)
        fits = any(value == c and type(value) is type(c) for c in choices)
        return value if fits else _wrong(_listed(choices), value, path, problems)
    if origin in (tuple, list):
        return _read_sequence(origin, get_args(hint), value, path, problems)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _read_mapping(get_args(hint)[1], value, path, problems)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _read_enum(hint, value, path, problems)
    if isinstance(hint, type) and is_dataclass(hint):
        return _read_dataclass(hint, value, path, problems)
    raise TypeError(f"{path}: no JSON form for the type {hint}")


def _read_plain(hint: type, value: Any, path: str, problems: ProblemList) -> Any:
    if hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return _wrong("a number within float64", value, path, problems)
    return value if type(value) is hint else _wrong(_PLAIN[hint], value, path, problems)


def _read_union(arms: tuple[Any, ...], value: Any, path: str, problems: ProblemList) -> Any:
    tried: list[ProblemList] = []
    for arm in arms:
        if isinstance(value, dict) and not _kind_fits(arm, value):
            continue
        attempt = ProblemList(problems.subject, problems.error)
        result = _read(arm, value, path, attempt)
        if not attempt:
            return result
        tried.append(attempt)
    if isinstance(value, dict) and len(tried) == 1:
        problems.extend(tried[0])
        return _BAD
    return _wrong(" or ".join(_name(arm) for arm in arms), value, path, problems)


def _kind_fits(arm: Any, value: dict[str, Any]) -> bool:
    if not (isinstance(arm, type) and is_dataclass(arm)):
        return get_origin(arm) is not None or arm is Any
    kind = field_types(arm).get("kind")
    return get_origin(kind) is not Literal or value.get("kind") in get_args(kind)


def _read_sequence(
    origin: type, args: tuple[Any, ...], value: Any, path: str, problems: ProblemList
) -> Any:
    if not isinstance(value, list):
        return _wrong("an array", value, path, problems)
    if origin is list or args[-1:] == (Ellipsis,):
        hints = [args[0]] * len(value)
    else:
        hints = [hint for hint in args if hint != ()]
        if len(hints) != len(value):
            return _wrong(f"an array of {len(hints)}", value, path, problems)
    items = [
        _read(hint, item, f"{path}[{i}]", problems)
        for i, (hint, item) in enumerate(zip(hints, value, strict=True))
    ]
    return origin(items)


def _read_mapping(hint: Any, value: Any, path: str, problems: ProblemList) -> Any:
    if not isinstance(value, dict):
        return _wrong("an object", value, path, problems)
    return {key: _read(hint, item, _join(path, key), problems) for key, item in value.items()}


def _read_enum(hint: type[enum.Enum], value: Any, path: str, problems: ProblemList) -> Any:
    for member in hint:
        if member.value == value and type(member.value) is type(value):
            return member
    return _wrong(_listed([member.value for member in hint]), value, path, problems)


def _read_dataclass(hint: type, value: Any, path: str, problems: ProblemList) -> Any:
    if not isinstance(value, dict):
        return _wrong("an object", value, path, problems)
    known = {field.name: field for field in fields(hint) if field.init}
    before = len(problems)
    for key in value:
        if key not in known:
            problems.add("unknown field", where=_join(path, key), allowed=", ".join(known))
    kwargs: dict[str, Any] = {}
    for name, field in known.items():
        if name in value:
            kwargs[name] = _read(field_types(hint)[name], value[name], _join(path, name), problems)
        elif field.default is MISSING and field.default_factory is MISSING:
            problems.add("is missing", where=_join(path, name))
    if len(problems) > before:
        return _BAD
    try:
        return hint(**kwargs)
    except (KernelgenError, ValueError, TypeError) as error:
        problems.add(str(error), where=path)
        return _BAD


def _wrong(expected: str, value: Any, path: str, problems: ProblemList) -> Any:
    shown = json_kind(value) if isinstance(value, (dict, list)) else quote(value)
    problems.add(f"is {shown}", where=path, allowed=expected)
    return _BAD


def _join(path: str, key: str) -> str:
    name = key if key.isidentifier() and len(key) <= 80 else quote(key)
    return f"{path}.{name}" if path else name


def _listed(choices: Any) -> str:
    return ", ".join(quote(choice) for choice in choices)


def _name(hint: Any) -> str:
    if hint is type(None):
        return "null"
    return _PLAIN.get(hint, getattr(hint, "__name__", str(hint)))
