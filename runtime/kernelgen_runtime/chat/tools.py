"""Owns the tools of a chat request and which of them must be called."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..artifact.bounded_json import Json
from ..errors import RequestError, shown
from ..sample.structured import Structured, check_schema

MAX_TOOLS = 256
MAX_TOOLS_CHARACTERS = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_ANY: dict[str, Json] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Tools:
    """`listed`: as the template gets them. `choice`: "none", "auto", "required" or a tool's name
    after "=". `schemas`: of the arguments of each, by name.
    """

    listed: tuple[dict[str, Any], ...] = ()
    choice: str = "none"
    schemas: Mapping[str, Any] | None = None
    is_parallel: bool = True

    @property
    def is_used(self) -> bool:
        """Whether calls may come."""
        return bool(self.listed) and self.choice != "none"

    @property
    def named(self) -> str:
        """The one that must be called; "" where it is up to the model."""
        return self.choice.removeprefix("=") if self.choice.startswith("=") else ""

    @property
    def is_strict(self) -> bool:
        """Whether arguments must be of their schemas wherever a call comes."""
        return any(tool["function"].get("strict") is True for tool in self.listed)

    @property
    def is_forced(self) -> bool:
        """Whether a call must come."""
        return self.choice == "required" or bool(self.named)

    def structured(self, style: str, opens: str, closes: str, instead: Json = None) -> Structured:
        """Return the bond to calls, written in `style`; see `Structured`.

        `instead`: a schema that the answer may have in the place of calls. Where no call is forced
        and nothing else is asked, text around calls is free.
        """
        schemas = dict(self.schemas or {})
        names = [self.named] if self.named else list(schemas)
        asked: dict[str, Any] = {
            "style": style,
            "many": self.is_parallel and not self.named,
            "tools": [{"name": name, "schema": _closed(schemas[name])} for name in names],
        }
        if instead is not None:
            asked["instead"] = instead
        elif not self.is_forced:
            asked["free"] = True
        return Structured("calls", json.dumps(asked, ensure_ascii=False), opens, closes)


def read_tools(body: Mapping[str, Json]) -> Tools:
    """Return what `tools`, `tool_choice` and `parallel_tool_calls` say. Raises RequestError."""
    value = body.get("tools")
    choice = body.get("tool_choice", "auto")
    if value is None or value == []:
        if choice not in ("none", "auto"):
            raise RequestError("tool_choice: there are no tools")
        return Tools()
    if not isinstance(value, list):
        raise RequestError(f"tools: must be a list, is {shown(value)}")
    if len(value) > MAX_TOOLS:
        raise RequestError(f"tools: at most {MAX_TOOLS}, are {len(value)}")
    if len(json.dumps(value)) > MAX_TOOLS_CHARACTERS:
        raise RequestError(f"tools: longer than {MAX_TOOLS_CHARACTERS} characters")
    listed = tuple(_tool(f"tools[{i}]", one) for i, one in enumerate(value))
    schemas = {one["function"]["name"]: one["function"].get("parameters", _ANY) for one in listed}
    if len(schemas) != len(listed):
        raise RequestError("tools: two have one name")
    parallel = body.get("parallel_tool_calls", True)
    if not isinstance(parallel, bool | None):
        raise RequestError(f"parallel_tool_calls: must be true or false, is {shown(parallel)}")
    return Tools(listed, _choice(choice, schemas), schemas, parallel is not False)


def _tool(where: str, value: Json) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(value, dict) or value.get("type", "function") != "function":
        kind = value.get("type") if isinstance(value, dict) else value
        raise RequestError(f"{where}.type: must be function, is {shown(kind)}")
    if not isinstance(function, dict):
        raise RequestError(f"{where}.function: must be an object, is {shown(function)}")
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{where}.function.name: must be 1 to 128 letters, digits, _ . : / or -, "
            f"is {shown(name)}"
        )
    if schema is not None and not isinstance(schema, dict):
        raise RequestError(f"{where}.function.parameters: must be a schema, is {shown(schema)}")
    check_schema(schema)
    made = {key: one for key, one in function.items() if one is not None}
    return {"type": "function", "function": made}


def _choice(value: Json, names: Mapping[str, Any]) -> str:
    if value is None:
        return "auto"
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise RequestError(
            'tool_choice: must be none, auto, required or {"type": "function", "function": '
            f'{{"name": …}}}}, is {shown(value)}'
        )
    if name not in names:
        raise RequestError(f"tool_choice: there is no tool {shown(name)}")
    return f"={name}"


def _closed(schema: Any) -> Any:
    """Return a schema of arguments that is one: without properties anything would do."""
    if not isinstance(schema, dict) or "$ref" in schema or "properties" not in schema:
        return schema or _ANY
    # What a model is asked for is what it may give; `additionalProperties` said otherwise stays.
    return {"type": "object", "additionalProperties": False, **schema}
