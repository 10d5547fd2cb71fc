"""Owns what a body says of the form of an answer: `response_format` and its relatives."""

import json
from collections.abc import Mapping
from dataclasses import replace

from ..artifact.bounded_json import Json
from ..errors import RequestError, shown
from ..sample.structured import Structured, schema_of

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}


def completion_structured(body: Mapping[str, Json]) -> Structured | None:
    """Return what a text must be; None where it is free. Raises RequestError.

    Read are `response_format`, `structured_outputs` (json, json_object, regex, choice or grammar)
    and the older `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar`; only one of
    them may say something.
    """
    found: dict[str, Structured] = {}
    if (value := body.get("response_format")) is not None:
        structured = _response_format(value)
        if structured is not None:
            found["response_format"] = structured
    outputs = body.get("structured_outputs")
    if outputs is not None:
        if not isinstance(outputs, dict):
            raise RequestError(f"structured_outputs: must be an object, is {shown(outputs)}")
        for name, one in outputs.items():
            if name in _KINDS and one is not None and one is not False:
                found[f"structured_outputs.{name}"] = _KINDS[name](one)
            elif name == "structural_tag" and one is not None:
                raise RequestError("structured_outputs.structural_tag: cannot be asked here")
    for name, kind in _GUIDED.items():
        if body.get(name) is not None:
            found[name] = _KINDS[kind](body[name])
    if len(found) > 1:
        raise RequestError(f"{' and '.join(found)}: only one can bind an answer")
    return next(iter(found.values()), None)


def after_thought(structured: Structured, opens: str, closes: str) -> Structured:
    """Return the same bond with room for a thought before it."""
    return replace(structured, opens=opens, closes=closes) if closes else structured


def _response_format(value: Json) -> Structured | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in ("text", "json_object", "json_schema"):
        raise RequestError(
            f"response_format.type: must be text, json_object or json_schema, is {shown(kind)}"
        )
    if kind == "text":
        return None
    if kind == "json_object":
        return Structured("json_object")
    held = value.get("json_schema")
    if not isinstance(held, dict):
        raise RequestError(f"response_format.json_schema: must be an object, is {shown(held)}")
    schema = held.get("schema")
    if not isinstance(schema, dict):
        raise RequestError(
            f"response_format.json_schema.schema: must be an object, is {shown(schema)}"
        )
    return schema_of(schema)


def _json(value: Json) -> Structured:
    return Structured("json_schema", value) if isinstance(value, str) else schema_of(value)


def _regex(value: Json) -> Structured:
    if not isinstance(value, str):
        raise RequestError(f"regex: must be text, is {shown(value)}")
    return Structured("regex", value)


def _choice(value: Json) -> Structured:
    if not isinstance(value, list):
        raise RequestError(f"choice: must be a list of texts, is {shown(value)}")
    return Structured("choice", json.dumps(value, ensure_ascii=False))


def _grammar(value: Json) -> Structured:
    if not isinstance(value, str):
        raise RequestError(f"grammar: must be text, is {shown(value)}")
    return Structured("lark", value)


def _object(value: Json) -> Structured:
    if value is not True:
        raise RequestError(f"json_object: must be true, is {shown(value)}")
    return Structured("json_object")


_KINDS = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _object,
}
