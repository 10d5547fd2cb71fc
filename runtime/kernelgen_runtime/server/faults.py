"""Owns checking a request's body against its schema: bounded work, bounded text, exact count."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..artifact.bounded_json import Json
from ..errors import RequestError, shown

MOST_TOLD = 10
Schema = Mapping[str, Any]
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


class FieldError(RequestError):
    """A request that its schema refuses; `param` is the first field that is wrong."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.param = param


@dataclass
class Faults:
    """What is wrong with a body. The first ten are told, all are counted."""

    told: list[tuple[str, str]] = field(default_factory=list)
    count: int = 0

    def add(self, where: str, schema: Schema, value: Json) -> None:
        """Note that `value` is not what its schema allows; the first ten are put into words."""
        self.count += 1
        if self.count <= MOST_TOLD:
            self.told.append((where[:120], f"must be {wording(schema)}, is {shown(value)}"))

    def add_missing(self, where: str) -> None:
        """Note a field that has to be there."""
        self.count += 1
        if self.count <= MOST_TOLD:
            self.told.append((where[:120], "is missing"))

    def error(self) -> FieldError:
        """Return them as an error of at most a few kB."""
        lines = [f"{where or 'the body'}: {what}" for where, what in self.told]
        more = f"; {self.count} in all" if self.count > len(lines) else ""
        return FieldError("; ".join(lines) + more, self.told[0][0] or None if self.told else None)


def check(value: Json, schema: Schema) -> None:
    """Raise FieldError where `value` does not follow `schema`.

    Understands type, properties, required, items, additionalProperties, enum, anyOf, minimum,
    maximum, exclusiveMinimum, minLength, maxLength, minItems, maxItems. A list that is too long is
    one fault: it is not walked through. Where nothing of an anyOf fits that is one fault, too.
    """
    faults = Faults()
    _walk(value, schema, "", faults)
    if faults.count:
        raise faults.error()


def _walk(value: Json, schema: Schema, where: str, faults: Faults) -> None:
    if "anyOf" in schema:
        fitting = [s for s in schema["anyOf"] if _is_kind(value, s)]
        if not fitting:
            faults.add(where, schema, value)
        elif len(fitting) == 1:
            _walk(value, fitting[0], where, faults)
        elif not any(_fits(value, s) for s in fitting):
            faults.add(where, schema, value)
        return
    if not _is_kind(value, schema) or ("enum" in schema and value not in schema["enum"]):
        faults.add(where, schema, value)
    elif isinstance(value, list):
        _walk_list(value, schema, where, faults)
    elif isinstance(value, dict):
        _walk_object(value, schema, where, faults)
    elif not _in_range(value, schema):
        faults.add(where, schema, value)


def _walk_list(value: list[Json], schema: Schema, where: str, faults: Faults) -> None:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        faults.add(where, schema, value)
        return
    if (items := schema.get("items")) is not None and not _are_all_whole(value, items):
        for at, item in enumerate(value):
            _walk(item, items, f"{where}[{at}]", faults)


def _are_all_whole(value: list[Json], items: Schema) -> bool:
    """Return whether all are numbers that `items` allows: a long prompt is seen at a glance."""
    if set(map(type, value)) != {int}:
        return False
    numbers: list[int] = value  # type: ignore[assignment]
    low, high = min(numbers), max(numbers)
    return any(
        part.get("type") == "integer" and _in_range(low, part) and _in_range(high, part)
        for part in items.get("anyOf", [items])
    )


def _walk_object(value: dict[str, Json], schema: Schema, where: str, faults: Faults) -> None:
    if len(value) > schema.get("maxProperties", len(value)):
        faults.add(where, schema, value)
        return
    dot = f"{where}." if where else ""
    for name in schema.get("required", ()):
        if name not in value:
            faults.add_missing(dot + name)
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    for name, item in value.items():
        if (part := properties.get(name, others)) not in (True, {}):
            _walk(item, part, dot + name[:60], faults)


def _fits(value: Json, schema: Schema) -> bool:
    faults = Faults(count=MOST_TOLD)  # nothing is put into words
    _walk(value, schema, "", faults)
    return faults.count == MOST_TOLD


def _is_kind(value: Json, schema: Schema) -> bool:
    kind = schema.get("type")
    if kind is None:
        return True
    if isinstance(value, bool):
        return bool(kind == "boolean")
    kinds: tuple[type, ...] = _KINDS[kind]
    return isinstance(value, kinds)


def _in_range(value: Json, schema: Schema) -> bool:
    if isinstance(value, str):
        least, most = schema.get("minLength", 0), schema.get("maxLength", len(value))
        return bool(least <= len(value) <= most)
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        return bool(low <= value <= high and value > schema.get("exclusiveMinimum", value - 1))
    return True


def wording(schema: Schema) -> str:
    """Return what a schema allows, for people."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(wording(part) for part in schema["anyOf"]))
    if "enum" in schema:
        return "one of " + ", ".join(shown(value) for value in schema["enum"][:20])
    kind = schema.get("type", "")
    word = _WORDS.get(kind, "something else")
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        word += f" above {schema['exclusiveMinimum']}" + (f" and up to {high}" if high else "")
    elif low is not None and high is not None:
        word += f" from {low} to {high}"
    elif low is not None:
        word += f" of {low} or more"
    if "maxProperties" in schema:
        word += f" of up to {schema['maxProperties']} fields"
    if kind == "array" and "maxItems" in schema:
        word += f" of {schema.get('minItems', 0)} to {schema['maxItems']}"
    if kind == "string" and "maxLength" in schema:
        word += f" of {schema.get('minLength', 0)} to {schema['maxLength']} characters"
    return word
