"""Text made a value of a schema's type: one pure function, by a table."""

from __future__ import annotations

from typing import Any

import pytest
from kernelgen_runtime.chat.formats.coerce import coerce, fit

REFERENCE = {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}
EITHER = {"anyOf": [{"type": "integer"}, {"type": "null"}, {"type": "string"}]}
TABLE: list[tuple[str, Any, Any]] = [
    ("5", {"type": "integer"}, 5),
    (" 5\n", {"type": "integer"}, 5),
    ("+5", {"type": "integer"}, 5),
    ("5.0", {"type": "integer"}, 5),
    ("5.5", {"type": "integer"}, "5.5"),
    ("5x", {"type": "integer"}, "5x"),
    ("1e3", {"type": "number"}, 1000.0),
    ("-0.25", {"type": "number"}, -0.25),
    ("7", {"type": "number"}, 7),
    ("NaN", {"type": "number"}, "NaN"),
    ("inf", {"type": "number"}, "inf"),
    ("1e999", {"type": "number"}, "1e999"),
    ("true", {"type": "boolean"}, True),
    ("False", {"type": "boolean"}, False),
    ("yes", {"type": "boolean"}, "yes"),
    ("null", {"type": "null"}, None),
    ("None", {"type": ["integer", "null"]}, None),
    ("null", {"type": "string"}, "null"),
    ("5", {"type": "string"}, "5"),
    ("  5 ", {"type": "string"}, "  5 "),
    ("[1, 2]", {"type": "array"}, [1, 2]),
    ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
    ("[1]", {"type": "object"}, "[1]"),
    ("{'a': 1}", {"type": "object"}, "{'a': 1}"),
    ("5", EITHER, 5),
    ("null", EITHER, None),
    ("five", EITHER, "five"),
    ("5", {"enum": [1, 5]}, 5),
    ("red", {"enum": ["red", "5"]}, "red"),
    ("5", {"enum": ["red", "5"]}, "5"),
    ("true", {"const": True}, True),
    ("5", REFERENCE, 5),
    ("5", {"$ref": "#"}, 5),
    ("5", {"$ref": "#/nowhere"}, 5),
    ('{"a": 1}', {"properties": {"a": {}}}, {"a": 1}),
    ("5", None, 5),
    ("words", None, "words"),
    ('"5"', None, '"5"'),
    ("5", True, 5),
    ("[1]", {"allOf": [{"type": "array"}]}, [1]),
]


@pytest.mark.row("R-171")
@pytest.mark.parametrize(("text", "schema", "value"), TABLE)
def test_text_becomes_a_value(text: str, schema: Any, value: Any) -> None:
    found = coerce(text, schema)
    assert found == value and type(found) is type(value)


@pytest.mark.row("R-171")
def test_values_inside_values() -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "s": {"type": "string"},
            "l": {"type": "array", "items": {"type": "number"}},
            "o": {"type": "object", "properties": {"b": {"type": "boolean"}}},
            "r": {"$ref": "#/$defs/n"},
        },
        "$defs": {"n": {"type": "integer"}},
    }
    value = {"n": "5", "s": 5, "l": ["1", 2, "x"], "o": {"b": "true"}, "r": "7", "other": "8"}
    assert fit(value, schema) == {
        "n": 5,
        "s": "5",
        "l": [1, 2, "x"],
        "o": {"b": True},
        "r": 7,
        "other": "8",
    }
    assert fit(None, {"type": "string"}) is None
    deep: Any = "5"
    for _ in range(100):
        deep = [deep]
    assert fit(deep, {"type": "array"}) == deep
